"""The only modules that know mlx-lm from the inside."""
