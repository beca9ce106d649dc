"""What `chorus doctor` looks at."""
