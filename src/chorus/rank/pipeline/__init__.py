"""A run of layers of any mlx-lm decoder."""
