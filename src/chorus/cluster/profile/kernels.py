"""How fast this machine runs the products of a model: `python -m chorus.cluster.profile.kernels`, a process of its own.

Measured on MLX's own kernels, in the number type that models get here, at sizes past the processor's caches. A few
seconds in all; the best of several runs counts, since other programs can only slow one down.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType
from typing import Any

from chorus.cluster.profile.rates import Rates
from chorus.platform import prepare
from chorus.platform.accelerator import mpi
from chorus.platform.memory.amounts import own_device_memory
from chorus.platform.process.measuring import seconds_of, tell
from chorus.transport import catalog

_SECONDS_EACH = 0.4
_ROWS = 256
_PACKED_ROWS = {"cpu": 16, "metal": 512, "cuda": 512}
"""As many as a prompt's chunk has: GPUs take another kernel for few rows. On a CPU one kernel takes them all, so slowly
that many would take minutes."""
_WIDTH = {"cpu": 1536, "metal": 4096, "cuda": 4096}
_MATRICES = 24
_SMALL = 64
_SMALL_LAYERS = 16
_BITS, _GROUP = 4, 64


def measure(threads: int | None) -> Rates:
    prepared = prepare(threads)
    if library := mpi.library():
        os.environ[mpi.LIBRARY_VARIABLE] = str(library)
    import mlx.core as mx

    dtype = mx.float32 if prepared.backend == "cpu" else mx.bfloat16
    width = _WIDTH[prepared.backend]
    weights = [mx.random.normal((width, width)).astype(dtype) for _ in range(_MATRICES)]
    mx.eval(weights)
    packed = [mx.quantize(weight, group_size=_GROUP, bits=_BITS) for weight in weights]
    mx.eval(packed)

    def plain(x: Any, index: int) -> Any:
        return x @ weights[index].T

    def quantized(x: Any, index: int) -> Any:
        return mx.quantized_matmul(x, *packed[index], transpose=True, group_size=_GROUP, bits=_BITS)

    bytes_plain, bytes_packed = weights[0].nbytes, sum(part.nbytes for part in packed[0])
    return Rates(
        device=str(mx.device_info().get("device_name", mx.default_device())),
        dtype=str(dtype).rpartition(".")[2],
        device_memory=own_device_memory(mx),
        flops=_flops(mx, plain, width, dtype, _ROWS),
        bandwidth=_bandwidth(mx, plain, width, dtype, bytes_plain),
        packed_flops=_flops(mx, quantized, width, dtype, _PACKED_ROWS[prepared.backend]),
        packed_bandwidth=_bandwidth(mx, quantized, width, dtype, bytes_packed),
        layer_seconds=_layer_seconds(mx, dtype),
        collectives=tuple(name for name in catalog.collectives() if mx.distributed.is_available(name)),
    )


def _flops(mx: ModuleType, product: Callable[[Any, int], Any], width: int, dtype: Any, rows: int) -> float:
    x = mx.random.normal((rows, width)).astype(dtype)
    return 2 * rows * width * width / _best(lambda: mx.eval(product(x, 0)))


def _bandwidth(mx: ModuleType, product: Callable[[Any, int], Any], width: int, dtype: Any, nbytes: int) -> float:
    """One row through all the matrices, as in decoding: together they exceed the caches."""
    x = mx.random.normal((1, width)).astype(dtype)

    def step() -> None:
        y = x
        for index in range(_MATRICES):
            y = product(y, index) * (1.0 / width)
        mx.eval(y)

    return _MATRICES * nbytes / _best(step)


def _layer_seconds(mx: ModuleType, dtype: Any) -> float:
    """A layer so small that only launching its operations takes time."""
    heads, head = 4, _SMALL // 4
    norm = mx.ones((_SMALL,), dtype=dtype)
    weight = mx.random.normal((_SMALL, _SMALL)).astype(dtype)
    cached = mx.zeros((1, heads, 32, head), dtype=dtype)
    x = mx.random.normal((1, 1, _SMALL)).astype(dtype)
    mx.eval(norm, weight, cached, x)

    def layer(h: Any) -> Any:
        y = mx.fast.rms_norm(h, norm, 1e-5)
        q, k, v = ((y @ weight).reshape(1, 1, heads, head).transpose(0, 2, 1, 3) for _ in range(3))
        q, k = (mx.fast.rope(part, head, traditional=False, base=10000.0, scale=1.0, offset=31) for part in (q, k))
        keys, values = mx.concatenate([cached, k], axis=2), mx.concatenate([cached, v], axis=2)
        attended = mx.fast.scaled_dot_product_attention(q, keys, values, scale=0.25)
        h = h + attended.transpose(0, 2, 1, 3).reshape(1, 1, -1) @ weight
        y = mx.fast.rms_norm(h, norm, 1e-5)
        gate = y @ weight
        return h + (gate * mx.sigmoid(gate) * (y @ weight)) @ weight

    def step() -> None:
        h = x
        for _ in range(_SMALL_LAYERS):
            h = layer(h)
        mx.eval(h)

    return _best(step) / _SMALL_LAYERS


def _best(action: Callable[[], object]) -> float:
    return min(seconds_of(action, _SECONDS_EACH))


def main() -> None:
    tell(__doc__, lambda threads: asdict(measure(threads)))


if __name__ == "__main__":
    main()
