"""What an unsharded architecture can do, found by trying it.

Upstream is not equally able everywhere: some caches cannot be merged, some models answer differently when a prompt
comes in pieces. A sharded model owes only what the unsharded one does, so these facts say what to demand of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

from .build import single_cache

TOLERANCE = 1e-3

Caches = list[Any]

# Longer than every sliding window and attention chunk of the tiny configurations.
PROMPT: tuple[int, ...] = (5, 17, 99, 3, 42, 60, 7, 81, 23, 11, 90, 2, 64, 33, 71, 8, 54, 19, 101, 46)
CHUNKS: tuple[int, ...] = (7, 9, 4)
# Shorter than every window, so that no key has been dropped yet.
SHORT = 4


@dataclass(frozen=True)
class Fact:
    """Whether something holds for the unsharded model, and what was seen."""

    holds: bool
    seen: str


@dataclass(frozen=True)
class Facts:
    """What one architecture can do without sharding; each name is a column of the parity table."""

    decode: Fact
    chunks: Fact
    fork: Fact
    trim: Fact
    trim_past_window: Fact
    batch: Fact

    def columns(self) -> dict[str, Fact]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def facts(model: nn.Module) -> Facts:
    """Try everything on this model."""
    return Facts(
        decode=_try(lambda: decode_difference(model)),
        chunks=_try(lambda: chunk_difference(model)),
        fork=_try(lambda: fork_difference(model)),
        trim=_try(lambda: trim_difference(model, kept=SHORT - 1)),
        trim_past_window=_try(lambda: trim_difference(model, kept=len(PROMPT) - 6)),
        batch=_try(lambda: batch_difference(model)),
    )


class CannotError(Exception):
    """Upstream says itself that it does not do this."""


def feed(model: nn.Module, cache: Caches, tokens: Sequence[int]) -> mx.array:
    """The logits after each of these tokens, `(tokens, vocabulary)`."""
    logits = model(mx.array([list(tokens)]), cache=cache)[0].astype(mx.float32)
    # Not waited for: the next forward can be built meanwhile.
    mx.async_eval(logits)
    return logits


def whole(model: nn.Module, tokens: Sequence[int]) -> mx.array:
    """The logits of all tokens in one forward on fresh caches: the reference of every fact."""
    return feed(model, single_cache(model), tokens)


def difference(got: mx.array, wanted: mx.array) -> float:
    """The largest difference, or not a number. Both may forbid a token by minus infinity, but only both together."""
    apart = mx.where(got == wanted, 0.0, mx.abs(got - wanted))
    return mx.max(apart).item()


def decode_difference(model: nn.Module, prompt: int = 7, steps: int = 3) -> float:
    """A prompt and then single tokens, against all of them at once."""
    tokens = PROMPT[: prompt + steps]
    cache = single_cache(model)
    got = [feed(model, cache, tokens[:prompt])]
    got += [feed(model, cache, [token]) for token in tokens[prompt:]]
    return difference(mx.concatenate(got), whole(model, tokens))


def chunk_difference(model: nn.Module) -> float:
    """A prompt in chunks, against the prompt at once."""
    cache = single_cache(model)
    got = []
    start = 0
    for size in CHUNKS:
        got.append(feed(model, cache, PROMPT[start : start + size]))
        start += size
    return difference(mx.concatenate(got), whole(model, PROMPT))


def fork_difference(model: nn.Module) -> float:
    """Two continuations of one copied cache, each against its own undivided run."""
    shared, first, second = PROMPT[:9], PROMPT[9:12], PROMPT[14:18]
    cache = single_cache(model)
    feed(model, cache, shared)
    fork = copy.deepcopy(cache)
    got = [feed(model, fork, first), feed(model, cache, second)]
    wanted = [_replay(model, shared, first), _replay(model, shared, second)]
    return difference(mx.concatenate(got), mx.concatenate(wanted))


def trim_difference(model: nn.Module, kept: int) -> float:
    """A cache trimmed to its first `kept` tokens and continued, against one that never held more."""
    surplus, rest = 77, PROMPT[kept : kept + 3]
    cache = _prefilled(model, PROMPT[:kept])
    untouched = copy.deepcopy(cache)
    # A single token: only after a decode step has a rotating cache settled into its final size.
    feed(model, cache, [surplus])
    if not can_trim_prompt_cache(cache):
        raise CannotError("its caches cannot be trimmed")
    trim_prompt_cache(cache, 1)
    return difference(feed(model, cache, rest), feed(model, untouched, rest))


def batch_difference(model: nn.Module) -> float:
    """Three sequences of unequal length decoded together, one more joining, one leaving; each against itself alone."""
    if missing := unbatchable(single_cache(model)):
        raise CannotError(missing)
    prompts = [PROMPT[:5], PROMPT[3:12], PROMPT[8:11], PROMPT[6:14]]
    caches = [_prefilled(model, prompt) for prompt in prompts]
    untouched = copy.deepcopy(caches)
    batch = merge(caches[:3])
    got: dict[int, list[mx.array]] = {row: [] for row in range(len(prompts))}

    def step(rows: list[int]) -> None:
        tokens = mx.array([[_STEPS[len(got[row])]] for row in rows])
        logits = model(tokens, cache=batch)[:, -1].astype(mx.float32)
        mx.async_eval(logits)
        for row, last in zip(rows, logits, strict=True):
            got[row].append(last)

    for _ in range(2):
        step([0, 1, 2])
    for cache, joining in zip(batch, merge(caches[3:]), strict=True):
        cache.extend(joining)
    step([0, 1, 2, 3])
    for cache in batch:
        cache.filter(mx.array([0, 2, 3]))
    step([0, 2, 3])
    wanted = {
        row: [feed(model, untouched[row], [token])[0] for token in _STEPS[: len(logits)]] for row, logits in got.items()
    }
    return difference(_joined(got), _joined(wanted))


def merge(caches: Sequence[Caches]) -> Caches:
    """One batch of several sequences' caches, layer by layer."""
    return [column[0].merge(list(column)) for column in zip(*caches, strict=True)]


def unbatchable(caches: Caches) -> str | None:
    """The first cache class that lacks what a batch needs, in words; None when all have it."""
    for cache in caches:
        parts = getattr(cache, "caches", [cache])
        for part in parts:
            if not hasattr(part, "merge"):
                return f"{type(part).__name__} cannot be merged into a batch"
    return None


# What the batch is fed, step by step, the same for every row.
_STEPS: tuple[int, ...] = (12, 88, 37, 70)


def _joined(rows: dict[int, list[mx.array]]) -> mx.array:
    return mx.stack([logits for row in sorted(rows) for logits in rows[row]])


def _prefilled(model: nn.Module, prompt: Sequence[int]) -> Caches:
    cache = single_cache(model)
    feed(model, cache, prompt)
    return cache


def _replay(model: nn.Module, prompt: Sequence[int], rest: Sequence[int]) -> mx.array:
    return feed(model, _prefilled(model, prompt), rest)


def _try(measure: Callable[[], float]) -> Fact:
    """An architecture fails a column by any error that upstream raises, so any error is an answer here."""
    try:
        worst = measure()
    except CannotError as error:
        return Fact(False, str(error))
    except Exception as error:
        return Fact(False, f"{type(error).__name__}: {error}")
    return Fact(worst <= TOLERANCE, f"largest difference {worst:.1e}")
