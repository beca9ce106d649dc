"""Picks tokens from logits, row by row the same whatever else is in the batch.

Noise comes from a counter-based key, (hash of the seed, position of the token), never from a global state: a request
draws the same tokens alone, in a batch, on any number of ranks and after a recovery.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from chorus.messages.engine import Sampling, TokenLogprobs
from chorus.platform.accelerator import device

Mask = np.ndarray[Any, np.dtype[np.int32]]
XTC_SALT = 0x58544321
"""Keeps the coin of XTC apart from the noise that picks the token."""


MOST = 2**31 - 1
"""More tokens than any vocabulary has."""

REMEMBERED = 8
"""Batches whose settings a sampler keeps as arrays: those of all lanes, and of prompts between them."""


class Draw(NamedTuple):
    """One row to sample: by which rules, where the token will stand, and what came before it. Made for every token, so
    of the kind of value that is made fastest.
    """

    sampling: Sampling
    position: int
    prompt: Rows[int] = ()
    output: Rows[int] = ()
    mask: Mask | None = None
    """One bit per token, 32 to a word, where a grammar says which tokens may come."""


class Sampler:
    """Draws for batch after batch. What follows from the rules of a batch's rows is made once while the rows stay."""

    def __init__(self) -> None:
        self._known: deque[_Settings] = deque(maxlen=REMEMBERED)

    def sample(self, logits: mx.array, draws: Rows[Draw]) -> mx.array:
        """Token ids, one per row of `logits` (rows x vocabulary)."""
        settings = self._settings(tuple([draw.sampling for draw in draws]))
        logits = _adjusted(logits, draws, settings)
        if settings.all_greedy:
            # A CPU looks at numbers of half the size one at a time.
            return mx.argmax(logits.astype(mx.float32) if _on_cpu() else logits, axis=-1)
        return _drawing(settings.form)(logits, _positions(draws), *settings.arrays)

    def _settings(self, rules: tuple[Sampling, ...]) -> _Settings:
        # Rows that stay have the very same rules, and comparing those costs next to nothing.
        found = next((settings for settings in self._known if settings.rules == rules), None)
        if found is None:
            found = _Settings(rules)
            self._known.append(found)
        return found


def preferences(logits: mx.array, draws: Rows[Draw]) -> mx.array:
    """What every token scores once bias, penalties, grammar, filters and noise are applied: the best one is drawn."""
    settings = _Settings(tuple(draw.sampling for draw in draws))
    logits = _adjusted(logits, draws, settings).astype(mx.float32)
    return logits if settings.all_greedy else _noisy(settings.form, logits, _positions(draws), *settings.arrays)


@dataclass(frozen=True, slots=True)
class Scores:
    """Log probabilities of the sampled tokens and of the best candidates, still in the graph."""

    chosen: mx.array
    top_tokens: mx.array
    top: mx.array

    @property
    def arrays(self) -> list[mx.array]:
        return [self.chosen, self.top_tokens, self.top]

    def rows(self, counts: Mapping[int, int]) -> dict[int, TokenLogprobs]:
        """By row, for those that want so many of the best candidates."""
        chosen, tokens, logprobs = map(np.array, self.arrays)
        told = {}
        for row, count in counts.items():
            best = np.lexsort((tokens[row], -logprobs[row]))[:count]
            top = zip(tokens[row, best].tolist(), logprobs[row, best].tolist(), strict=True)
            told[row] = TokenLogprobs(float(chosen[row]), tuple(top))
        return told


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


def _penalized(rules: Sampling) -> bool:
    return rules.repetition_penalty != 1.0 or rules.presence_penalty != 0.0 or rules.frequency_penalty != 0.0


class _Form(NamedTuple):
    """Which operations the rules of a batch need: batches of one form have one graph."""

    greedy: bool
    """Some rows take the likeliest token."""
    ordered: bool
    top_p: bool
    min_p: bool
    xtc: bool


class _Settings:
    """The rules of a batch's rows, and as arrays what a graph needs of them."""

    def __init__(self, rules: tuple[Sampling, ...]) -> None:
        self.rules = rules
        self.all_greedy = all(r.temperature == 0.0 for r in rules)
        self.biases = [(row, token, bias) for row, r in enumerate(rules) for token, bias in r.logit_bias.items()]
        self.penalized = any(map(_penalized, rules))

    @cached_property
    def form(self) -> _Form:
        drawn = [r for r in self.rules if r.temperature != 0.0]
        return _Form(
            greedy=len(drawn) < len(self.rules),
            ordered=any(r.top_k or r.top_p < 1.0 for r in drawn),
            top_p=any(r.top_p < 1.0 for r in drawn),
            min_p=any(r.min_p > 0.0 for r in drawn),
            xtc=any(r.xtc_probability > 0.0 for r in drawn),
        )

    @cached_property
    def arrays(self) -> tuple[mx.array, ...]:
        """In the order in which `_noisy` takes them. A row's values for what it does not use change nothing."""
        rules = self.rules
        return (
            mx.array([seed_word(r.seed) for r in rules], dtype=mx.uint32),
            _column([r.temperature or 1.0 for r in rules]),
            _column([r.temperature == 0.0 for r in rules]),
            _column([min(r.top_k, MOST) or MOST for r in rules]),
            # The sum of all shares may round to more than 1.
            _column([r.top_p if r.top_p < 1.0 else 2.0 for r in rules]),
            _column([r.min_p for r in rules]),
            _column([r.xtc_threshold for r in rules]),
            _column([r.xtc_probability for r in rules]),
        )


def _positions(draws: Rows[Draw]) -> mx.array:
    return mx.array([draw.position for draw in draws], dtype=mx.uint32)


@cache
def _drawing(form: _Form) -> Callable[..., mx.array]:
    """From logits to tokens, compiled where that is quick: on a CPU it takes a C++ compiler and seconds."""
    draw = partial(_drawn, form)
    return draw if _on_cpu() else mx.compile(draw)


@cache
def _on_cpu() -> bool:
    return device.backend() == "cpu"


def _drawn(form: _Form, *arguments: mx.array) -> mx.array:
    return mx.argmax(_noisy(form, *arguments), axis=-1)


def _noisy(
    form: _Form,
    logits: mx.array,
    positions: mx.array,
    seeds: mx.array,
    temperature: mx.array,
    greedy: mx.array,
    top_k: mx.array,
    top_p: mx.array,
    min_p: mx.array,
    xtc_threshold: mx.array,
    xtc_probability: mx.array,
) -> mx.array:
    logits = logits.astype(mx.float32)
    scaled = _filter(form, logits / temperature, top_k, top_p, min_p)
    if form.xtc:
        coins = mx.vmap(lambda key: mx.random.uniform(key=key))(mx.stack([seeds ^ XTC_SALT, positions], axis=1))
        scaled = _exclude_top_choices(scaled, coins[:, None], xtc_threshold, xtc_probability)
    noisy = scaled + _noise(mx.stack([seeds, positions], axis=1), logits.shape[-1])
    return mx.where(greedy, logits, noisy) if form.greedy else noisy


def _adjusted(logits: mx.array, draws: Rows[Draw], settings: _Settings) -> mx.array:
    """With bias, penalties and grammars, in full precision; as they are where nobody has any of these."""
    masked = any(draw.mask is not None for draw in draws)
    if not (settings.biases or settings.penalized or masked):
        return logits
    logits = _add_at(logits.astype(mx.float32), settings.biases)
    if settings.penalized:
        logits = _penalize(logits, draws)
    return _forbid(logits, draws) if masked else logits


def _column(values: list[float] | list[bool] | list[int]) -> mx.array:
    return mx.array(values)[:, None]


Entry = tuple[int, int, float]
"""Row, token, value."""


def _add_at(logits: mx.array, entries: list[Entry]) -> mx.array:
    if not entries:
        return logits
    rows, tokens, values = zip(*entries, strict=True)
    return logits.at[mx.array(rows), mx.array(tokens)].add(mx.array(values, dtype=mx.float32))


def _penalize(logits: mx.array, draws: Rows[Draw]) -> mx.array:
    repeated = [entry for row, draw in enumerate(draws) for entry in _repeated(row, draw)]
    if repeated:
        rows, tokens, values = zip(*repeated, strict=True)
        where = mx.array(rows), mx.array(tokens)
        penalty, before = mx.array(values, dtype=mx.float32), logits[where]
        logits[where] = mx.where(before < 0, before * penalty, before / penalty)
    return _add_at(logits, [entry for row, draw in enumerate(draws) for entry in _counted(row, draw)])


def _forbid(logits: mx.array, draws: Rows[Draw]) -> mx.array:
    """Take away what the grammars do not allow; a token beyond a grammar's vocabulary is never allowed."""
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


def _filter(form: _Form, scaled: mx.array, top_k: mx.array, top_p: mx.array, min_p: mx.array) -> mx.array:
    """Top-k, then top-p, then min-p, as one threshold per row; what lies below it cannot be drawn."""
    threshold = None
    if form.ordered:
        ordered = -mx.sort(-scaled, axis=-1)
        ranks = mx.arange(scaled.shape[-1])[None]
        inside = ranks < top_k
        if form.top_p:
            shares = mx.softmax(mx.where(inside, ordered, -mx.inf), axis=-1)
            before = mx.cumsum(shares, axis=-1) - shares
            # The best token always stays.
            inside &= (before < top_p) | (ranks == 0)
        threshold = mx.min(mx.where(inside, ordered, mx.inf), axis=-1, keepdims=True)
    if form.min_p:
        floor = mx.log(min_p) + mx.max(scaled, axis=-1, keepdims=True)
        threshold = floor if threshold is None else mx.maximum(threshold, floor)
    return scaled if threshold is None else mx.where(scaled < threshold, -mx.inf, scaled)


def _exclude_top_choices(scaled: mx.array, coins: mx.array, threshold: mx.array, probability: mx.array) -> mx.array:
    """XTC: now and then drop all likely tokens but the least likely of them, so that the answer takes another turn."""
    shares = mx.softmax(scaled, axis=-1)
    likely = shares > threshold
    least = mx.min(mx.where(likely, shares, mx.inf), axis=-1, keepdims=True)
    dropped = likely & (shares > least) & (coins < probability)
    return mx.where(dropped, -mx.inf, scaled)


def _noise(keys: mx.array, vocabulary: int) -> mx.array:
    if len(keys) == 1:  # the same numbers with fewer kernels
        return mx.random.gumbel((1, vocabulary), key=keys[0])
    return mx.vmap(lambda key: mx.random.gumbel((vocabulary,), key=key))(keys)
