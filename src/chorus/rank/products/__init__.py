"""What layers multiply with: one product where they are given the same; on a CPU, kernels of ONNX Runtime."""
