"""What layers multiply with: one product where they are given the same; on a CPU, kernels for quantized weights and for large plain ones."""
