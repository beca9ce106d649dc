"""Picks tokens from logits, row by row the same whatever else is in the batch.

Noise comes from a counter-based key, (hash of the seed, position of the token), never from a global state: a request
draws the same tokens alone, in a batch, on any number of ranks and after a recovery.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from chorus.messages.engine import Sampling, TokenLogprobs

Mask = np.ndarray[Any, np.dtype[np.int32]]
XTC_SALT = 0x58544321
"""Keeps the coin of XTC apart from the noise that picks the token."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One row to sample: by which rules, where the token will stand, and what came before it."""

    sampling: Sampling
    position: int
    prompt: Rows[int] = ()
    output: Rows[int] = ()
    mask: Mask | None = None
    """One bit per token, 32 to a word, where a grammar says which tokens may come."""


def sample(logits: mx.array, draws: Rows[Draw]) -> mx.array:
    """Token ids, one per row of `logits` (rows x vocabulary)."""
    return mx.argmax(preferences(logits, draws), axis=-1)


def preferences(logits: mx.array, draws: Rows[Draw]) -> mx.array:
    """What every token scores once bias, penalties, grammar, filters and noise are applied: the best one is drawn."""
    logits = logits.astype(mx.float32)
    logits = _add_at(logits, _biases(draws))
    logits = _forbid(_penalize(logits, draws), draws)
    greedy = [_greedy(draw.sampling) for draw in draws]
    if all(greedy):
        return logits
    noisy = _filter(logits / _column([d.sampling.temperature or 1.0 for d in draws]), draws) + _noise(logits, draws)
    return mx.where(_column(greedy), logits, noisy) if any(greedy) else noisy


@dataclass(frozen=True, slots=True)
class Scores:
    """Log probabilities of the sampled tokens and of the best candidates, still in the graph."""

    chosen: mx.array
    top_tokens: mx.array
    top: mx.array

    @property
    def arrays(self) -> list[mx.array]:
        return [self.chosen, self.top_tokens, self.top]

    def row(self, row: int, count: int) -> TokenLogprobs:
        tokens, logprobs = np.array(self.top_tokens[row]), np.array(self.top[row])
        best = np.lexsort((tokens, -logprobs))[:count]
        return TokenLogprobs(
            float(np.array(self.chosen[row])), tuple((int(tokens[i]), float(logprobs[i])) for i in best)
        )


def score(logits: mx.array, tokens: mx.array, candidates: int) -> Scores:
    """The model's own opinion: before bias, penalties, temperature and filters."""
    logits = logits.astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(logprobs, tokens[:, None].astype(mx.int32), axis=-1)[:, 0]
    count = min(candidates, logits.shape[-1])
    best = mx.argpartition(-logprobs, kth=max(count - 1, 0), axis=-1)[:, :count]
    return Scores(chosen, best, mx.take_along_axis(logprobs, best, axis=-1))


def seed_word(seed: int) -> int:
    """A 32-bit key from a seed of any size, so that near seeds give unrelated noise."""
    return int.from_bytes(hashlib.blake2b(seed.to_bytes(16, "little", signed=True), digest_size=4).digest(), "little")


def _greedy(rules: Sampling) -> bool:
    return rules.temperature == 0.0


def _penalized(rules: Sampling) -> bool:
    return rules.repetition_penalty != 1.0 or rules.presence_penalty != 0.0 or rules.frequency_penalty != 0.0


def _filtered(rules: Sampling) -> bool:
    return not _greedy(rules) and (
        rules.top_p < 1.0 or rules.top_k > 0 or rules.min_p > 0.0 or rules.xtc_probability > 0.0
    )


def _column(values: list[float] | list[bool] | list[int]) -> mx.array:
    return mx.array(values)[:, None]


Entry = tuple[int, int, float]
"""Row, token, value."""


def _add_at(logits: mx.array, entries: list[Entry]) -> mx.array:
    if not entries:
        return logits
    rows, tokens, values = zip(*entries, strict=True)
    return logits.at[mx.array(rows), mx.array(tokens)].add(mx.array(values, dtype=mx.float32))


def _biases(draws: Rows[Draw]) -> list[Entry]:
    return [(row, token, bias) for row, draw in enumerate(draws) for token, bias in draw.sampling.logit_bias.items()]


def _penalize(logits: mx.array, draws: Rows[Draw]) -> mx.array:
    if not any(_penalized(draw.sampling) for draw in draws):
        return logits
    repeated = [entry for row, draw in enumerate(draws) for entry in _repeated(row, draw)]
    if repeated:
        rows, tokens, values = zip(*repeated, strict=True)
        where = mx.array(rows), mx.array(tokens)
        penalty, before = mx.array(values, dtype=mx.float32), logits[where]
        logits[where] = mx.where(before < 0, before * penalty, before / penalty)
    return _add_at(logits, [entry for row, draw in enumerate(draws) for entry in _counted(row, draw)])


def _forbid(logits: mx.array, draws: Rows[Draw]) -> mx.array:
    """Take away what the grammars do not allow; a token beyond a grammar's vocabulary is never allowed."""
    if all(draw.mask is None for draw in draws):
        return logits
    vocabulary = logits.shape[-1]
    allowed = np.ones((len(draws), vocabulary), dtype=bool)
    for row, draw in enumerate(draws):
        if draw.mask is not None:
            # Unpacked here: as a graph it is five operations over the vocabulary, and on a CPU ten times slower.
            known = min(vocabulary, 32 * len(draw.mask))
            allowed[row, :known] = np.unpackbits(draw.mask.view(np.uint8), bitorder="little", count=known)
            allowed[row, known:] = False
    return mx.where(mx.array(allowed), logits, -mx.inf)


def _repeated(row: int, draw: Draw) -> list[Entry]:
    rules = draw.sampling
    if rules.repetition_penalty == 1.0 or rules.repetition_context == 0:
        return []
    return [(row, token, rules.repetition_penalty) for token in sorted(set(_latest(draw, rules.repetition_context)))]


def _counted(row: int, draw: Draw) -> list[Entry]:
    rules = draw.sampling
    if rules.presence_penalty == 0.0 and rules.frequency_penalty == 0.0:
        return []
    present = set(_latest(draw, rules.presence_context) if rules.presence_context else draw.output)
    counts = Counter(_latest(draw, rules.frequency_context) if rules.frequency_context else draw.output)
    return [
        (row, token, -rules.presence_penalty * (token in present) - rules.frequency_penalty * counts[token])
        for token in sorted(present | counts.keys())
    ]


def _latest(draw: Draw, count: int) -> list[int]:
    """The last tokens of prompt and output together."""
    return [*draw.prompt[-count:], *draw.output[-count:]][-count:]


def _filter(scaled: mx.array, draws: Rows[Draw]) -> mx.array:
    """Top-k, then top-p, then min-p, as one threshold per row; what lies below it cannot be drawn. XTC comes last."""
    if not any(_filtered(draw.sampling) for draw in draws):
        return scaled
    rules = [draw.sampling for draw in draws]
    vocabulary = scaled.shape[-1]
    threshold = mx.full((len(draws), 1), -mx.inf)
    if any(r.top_k or r.top_p < 1.0 for r in rules):
        ordered = -mx.sort(-scaled, axis=-1)
        ranks = mx.arange(vocabulary)[None]
        inside = ranks < _column([min(r.top_k, vocabulary) or vocabulary for r in rules])
        if any(r.top_p < 1.0 for r in rules):
            shares = mx.softmax(mx.where(inside, ordered, -mx.inf), axis=-1)
            before = mx.cumsum(shares, axis=-1) - shares
            # The best token always stays; a row without top-p keeps every token, whatever the sum rounds to.
            inside &= (before < _column([r.top_p if r.top_p < 1.0 else 2.0 for r in rules])) | (ranks == 0)
        threshold = mx.min(mx.where(inside, ordered, mx.inf), axis=-1, keepdims=True)
    if any(r.min_p > 0.0 for r in rules):
        floor = mx.log(_column([r.min_p for r in rules])) + mx.max(scaled, axis=-1, keepdims=True)
        threshold = mx.maximum(threshold, floor)
    kept = mx.where(scaled < threshold, -mx.inf, scaled)
    return _exclude_top_choices(kept, draws) if any(r.xtc_probability > 0.0 for r in rules) else kept


def _exclude_top_choices(scaled: mx.array, draws: Rows[Draw]) -> mx.array:
    """XTC: now and then drop all likely tokens but the least likely of them, so that the answer takes another turn."""
    rules = [draw.sampling for draw in draws]
    keys = mx.array([[seed_word(d.sampling.seed) ^ XTC_SALT, d.position] for d in draws], dtype=mx.uint32)
    coins = mx.vmap(lambda key: mx.random.uniform(key=key))(keys)[:, None]
    shares = mx.softmax(scaled, axis=-1)
    likely = shares > _column([r.xtc_threshold for r in rules])
    least = mx.min(mx.where(likely, shares, mx.inf), axis=-1, keepdims=True)
    dropped = likely & (shares > least) & (coins < _column([r.xtc_probability for r in rules]))
    return mx.where(dropped, -mx.inf, scaled)


def _noise(logits: mx.array, draws: Rows[Draw]) -> mx.array:
    vocabulary = logits.shape[-1]
    keys = mx.array([[seed_word(draw.sampling.seed), draw.position] for draw in draws], dtype=mx.uint32)
    if len(draws) == 1:  # the same numbers with fewer kernels
        return mx.random.gumbel((1, vocabulary), key=keys[0])
    return mx.vmap(lambda key: mx.random.gumbel((vocabulary,), key=key))(keys)
