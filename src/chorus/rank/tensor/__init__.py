"""A slice of every layer."""
