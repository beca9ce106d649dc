"""What layers multiply with: one product where they are given the same; on a CPU, kernels of ONNX Runtime."""

import os

# ONNX Runtime would tell its makers of us, and keep a number for this machine among temporary files. Said before it is
# imported, which only modules of this package do.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
