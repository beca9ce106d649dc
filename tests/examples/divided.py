"""One of two ranks that divide a tiny model: `mpirun -n 2 python -m tests.examples.divided ARCHITECTURE REPORT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from chorus import platform
from chorus.rank.upstream import lean

platform.prepare(1)
lean.install()

import mlx.core as mx  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402

from chorus.rank.pipeline.stage import Stage, layer_count  # noqa: E402
from chorus.rank.tensor import divide  # noqa: E402
from tests.support.architectures import ARCHITECTURES, build  # noqa: E402

PROMPT = [7, 3, 11, 250, 42, 9, 130, 77, 5]
WEIGHTS = (1, 1)
TOKENS = 8


def greedy(stage: Stage) -> tuple[list[int], mx.array]:
    """The tokens that the model says, and the logits of each."""
    cache, feed, tokens, logits = stage.new_cache(), PROMPT, [], []
    for _ in range(TOKENS):
        (said,) = stage.forward(mx.array([feed]), cache)
        logits.append(said[0])
        tokens.append(int(mx.argmax(said[0]).item()))
        feed = tokens[-1:]
    return tokens, mx.stack(logits)


def main() -> None:
    name, report = sys.argv[1:]
    group = mx.distributed.init(strict=True, backend="mpi")
    whole, model = build(name), build(name)
    weights = divide.check(ARCHITECTURES[name], group.size(), WEIGHTS)
    divide.shard_model(model, ARCHITECTURES[name], divide.TensorPlan(group.rank(), weights), group)
    held = [sum(array.nbytes for _, array in tree_flatten(one.layers)) for one in (model, whole)]
    tokens, logits = greedy(Stage(model, 0, layer_count(model)))
    right_tokens, right_logits = greedy(Stage(whole, 0, layer_count(whole)))
    difference = mx.max(mx.abs(logits - right_logits)).item()
    if group.rank() == 0:
        found = {"tokens": tokens, "right": right_tokens, "difference": difference, "held": held[0] / held[1]}
        Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
