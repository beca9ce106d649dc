"""Attention of single tokens over rows of unequal length, where MLX has no kernel for it."""
