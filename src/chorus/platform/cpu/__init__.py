"""What MLX needs to be fast on a CPU: a real BLAS, kernels for packed weights, the right number of threads."""
