"""Proves here that a model cut into stages says what it says whole: `python -m chorus.rank.parity FOLDER`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from chorus import platform

PROMPT_TOKENS = 24
CHUNK = 16
NEW_TOKENS = 16


@dataclass(frozen=True)
class ParityReport:
    """Whether a model cut into stages says what it says whole."""

    split: tuple[int, ...]
    dtype: str
    equal: bool
    """Whether every greedy token is the same."""
    tokens: int
    largest_difference: float
    """The largest difference of any logit of any position that was compared."""
    exact: bool


def compare(path: Path, split: Sequence[int] | None, ranks: int) -> ParityReport:
    """Compare greedy tokens and logits of the whole model and of its stages, of which one is in memory at a time."""
    import mlx.core as mx

    from chorus.planning.split import choose_split, layers_of
    from chorus.rank.load import load_shard, stored_layers

    chosen = choose_split(split, stored_layers(path), ranks)
    whole = load_shard(path, range)
    prompt = [(7 * i + 3) % max(whole.vocabulary, 32) for i in range(PROMPT_TOKENS)]
    dtype = whole.policy.dtype
    expected_tokens, expected = _greedy([whole.stage], prompt)
    del whole
    mx.clear_cache()
    # Stage order is the reverse of rank order: the leader holds the last layers.
    parts = [layers_of(rank, chosen) for rank in reversed(range(len(chosen)))]
    stages = [load_shard(path, partial(_exactly, part)).stage for part in parts]
    tokens, logits = _greedy(stages, prompt)
    difference = float(np.array(mx.max(mx.abs(mx.stack(expected) - mx.stack(logits)))))
    return ParityReport(chosen, dtype, tokens == expected_tokens, len(tokens), difference, difference == 0.0)


def _exactly(layers: range, total: int) -> range:
    return layers


def _greedy(stages: Sequence[Any], prompt: list[int]) -> tuple[list[int], list[Any]]:
    import mlx.core as mx

    caches = [stage.new_cache() for stage in stages]

    def forward(tokens: list[int]) -> Any:
        arrays = None
        for stage, cache in zip(stages, caches, strict=True):
            arrays = stage.forward(mx.array([tokens]), cache, arrays)
        assert arrays is not None
        mx.eval(arrays)
        return arrays[0][0].astype(mx.float32)

    forward(prompt[:CHUNK])
    logits = [forward(prompt[CHUNK:])]
    tokens = [int(np.array(mx.argmax(logits[0])))]
    while len(tokens) < NEW_TOKENS:
        logits.append(forward([tokens[-1]]))
        tokens.append(int(np.array(mx.argmax(logits[-1]))))
    return tokens, logits


def main(arguments: Sequence[str] | None = None, write: Callable[[str], object] = print) -> int:
    parser = argparse.ArgumentParser(prog="python -m chorus.rank.parity", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--split", type=lambda text: tuple(int(part) for part in text.split(",")))
    parser.add_argument("--ranks", type=int, default=2)
    chosen = parser.parse_args(arguments)
    platform.prepare()
    from chorus.planning.split import SplitError
    from chorus.rank.load import LoadError

    try:
        ranks = len(chosen.split) if chosen.split else chosen.ranks
        report = compare(chosen.folder, chosen.split, ranks)
    except (LoadError, SplitError) as error:
        write(json.dumps({"error": str(error)}))
        return 1
    write(json.dumps(asdict(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
