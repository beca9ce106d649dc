"""How fast this machine computes layers with packed weights: `python -m chorus.rank.products.rates`, its own process.

Whole layers are measured, as a rank computes them. What a tiny one takes is launching operations and crossing to the
kernels; what a large one takes besides is products. The median of several runs counts: two pools of threads are never
quite out of each other's way, and a rank is no luckier.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from chorus.platform import prepare
from chorus.platform.accelerator import device
from chorus.platform.cpu.products import READ_COPIES, SCALE_COPIES
from chorus.platform.process.measuring import seconds_of, tell

_SECONDS_EACH = 0.8
_BITS, _GROUP = 4, 64
_HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8}
_LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 3, **_HEADS}
"""Together they exceed a processor's caches."""
_TINY = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 12, **_HEADS, "head_dim": 8}
_CONTEXT = 64


@dataclass(frozen=True)
class KernelRates:
    flops: float
    bandwidth: float
    """Bytes that products read, scales and shifts among them, per second."""
    layer_seconds: float


def measure(threads: int | None) -> KernelRates | None:
    """None where there are no kernels, or they do not work."""
    prepare(threads)
    from chorus.rank.products.threads import share_threads
    from chorus.rank.products.usable import usable

    if not usable():
        return None
    share_threads()
    tiny, large, rows = _Layers(_TINY), _Layers(_LARGE), device.prefill_chunk()
    seconds = tiny.seconds(1)
    step, chunk = (large.seconds(count) - seconds for count in (1, rows))
    return KernelRates(2 * rows * large.elements / chunk, large.read / step, seconds)


class _Layers:
    """Some layers in the kernels' form; figures are those of one."""

    def __init__(self, sizes: dict[str, int]) -> None:
        import mlx.nn as nn
        from mlx.utils import tree_flatten

        from chorus.rank.products.convert import pack_products
        from chorus.rank.upstream.decoders import build

        config = {"model_type": "llama", "vocab_size": 64, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}
        model = build({**config, **sizes})
        self._count = sizes["num_hidden_layers"]
        arrays = tree_flatten([layer.parameters() for layer in model.layers])
        self.elements = sum(array.size for _, array in arrays) / self._count
        nn.quantize(model, group_size=_GROUP, bits=_BITS)
        spare = (SCALE_COPIES - READ_COPIES) * self.elements / _GROUP * 4
        self.read = pack_products(model, tied_head=False) / self._count - spare
        self._run: Any = model.model  # without the head

    def seconds(self, rows: int) -> float:
        """Of one forward of so many tokens, after a few others."""
        import mlx.core as mx
        from mlx_lm.models.cache import make_prompt_cache

        cache = make_prompt_cache(self._run)
        mx.eval(self._run(mx.zeros((1, _CONTEXT), mx.int32), cache=cache))
        tokens = mx.zeros((1, rows), mx.int32)

        def step() -> None:
            mx.eval(self._run(tokens, cache=cache))
            for one in cache:
                one.trim(rows)

        return statistics.median(seconds_of(step, _SECONDS_EACH)) / self._count


def main() -> None:
    tell(__doc__, lambda threads: (found := measure(threads)) and asdict(found))


if __name__ == "__main__":
    main()
