"""What MLX lacks on CUDA, put in front of its own functions."""
