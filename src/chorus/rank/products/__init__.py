"""Products with quantized weights on a CPU, computed on the packed bytes by kernels that MLX does not have there."""
