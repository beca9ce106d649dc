"""Which sequences advance next, and by how many tokens, decided without a tensor and without MLX."""
