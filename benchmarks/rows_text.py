"""Whether rows of unequal length say what MLX's own path says: `python -m benchmarks.rows_text FOLDER`.

Rows decode together as a rank decodes them, with whatever stands in front of MLX here. Then the model as mlx-lm loads
it, with MLX's own functions, is fed each row's text alone: every token must score within a margin of the best.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from chorus import platform

MARGIN = 0.5
"""In half precision, by which a token may score below the best."""
LENGTHS = (5, 61, 300, 17, 129, 701, 33, 260)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    platform.prepare()
    texts = _decoded(options.folder, options.tokens)
    gaps = _gaps(options.folder, texts)
    missed = sum(gap > 0 for gap in gaps)
    print(f"{len(gaps)} tokens of {len(texts)} rows: {missed} are not MLX's own, by at most {max(gaps):.3f}")
    return int(max(gaps) > MARGIN)


def _decoded(folder: Path, tokens: int) -> list[list[int]]:
    """Prompts and what follows them, the likeliest token each."""
    import mlx.core as mx

    from chorus.rank.cache import caches
    from chorus.rank.load import load_shard

    shard = load_shard(folder, range)
    prompts = [[(13 * row + 7 * place) % 1000 + 3 for place in range(length)] for row, length in enumerate(LENGTHS)]
    alone, newest = [], []
    for prompt in prompts:
        cache = shard.stage.new_cache()
        newest.append(mx.argmax(shard.stage.forward(mx.array([prompt]), cache)[0], axis=-1))
        alone.append(cache)
    batch, drawn = caches.merge(alone), [mx.concatenate(newest)]
    for _ in range(tokens - 1):
        drawn.append(mx.argmax(shard.stage.forward(drawn[-1][:, None], batch)[0], axis=-1))
        mx.eval(drawn[-1])
    answers = cast(list[list[int]], mx.stack(drawn, axis=1).tolist())
    return [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]


def _gaps(folder: Path, texts: list[list[int]]) -> list[float]:
    """By how much each token behind the prompts scores below the best, by MLX's own path."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    gaps: list[mx.array] = []
    with _mlx_alone():
        model = load_model(folder)[0]
        for text, prompt in zip(texts, LENGTHS, strict=True):
            logits = model(mx.array([text]))[0, prompt - 1 : -1].astype(mx.float32)
            chosen = mx.take_along_axis(logits, mx.array(text[prompt:])[:, None], axis=1)[:, 0]
            gaps.append(logits.max(axis=1) - chosen)
        return cast(list[float], mx.concatenate(gaps).tolist())


@contextmanager
def _mlx_alone() -> Iterator[None]:
    """MLX's own functions, without ours in front of them."""
    import mlx.core as mx

    ours = mx.fast.scaled_dot_product_attention, mx.quantized_matmul
    mx.fast.scaled_dot_product_attention, mx.quantized_matmul = (getattr(one, "_own", one) for one in ours)
    try:
        yield
    finally:
        mx.fast.scaled_dot_product_attention, mx.quantized_matmul = ours


if __name__ == "__main__":
    sys.exit(main())
