"""How fast a machine computes, as it was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    device: str
    dtype: str
    device_memory: int
    """Bytes that arrays may take in all: on Metal of the working set as macOS makes it, not as an owner raises it."""
    flops: float
    bandwidth: float
    packed_flops: float
    packed_bandwidth: float
    layer_seconds: float
    collectives: tuple[str, ...]
    kernel_flops: float | None = None
    """Of packed weights on a CPU (chorus.rank.products.rates); None where no kernels work."""
    kernel_bandwidth: float | None = None
    kernel_layer_seconds: float | None = None
