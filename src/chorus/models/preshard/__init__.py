"""A model cut into one folder per rank."""
