"""What the scheduler knows of each request that is not over, and of the batches in which they decode."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

from chorus.engine.prefix.index import Hit
from chorus.engine.prefix.saved import Saved
from chorus.messages.engine import Request, Timing
from chorus.text.grammar.client import Constraint

HEADROOM = 256
"""Admission reserves so many tokens for an answer: most are far shorter than they may be, and the rest give way."""


@dataclass(eq=False, slots=True)
class Sequence:
    number: int
    request: Request
    arrived: float
    constraint: Constraint | None = None
    """Which tokens its grammar allows next; closed when it ends."""
    output: list[int] = field(default_factory=list)
    filling: tuple[int, ...] = ()
    """What is fed before the next token is drawn: the prompt, and behind it what was answered when it began."""
    fed: int = 0
    """Of these, those that lie in its cache or were handed out in steps."""
    drawn: int = 0
    """Tokens fed behind them, each drawn by the step before."""
    expected: int = 0
    """Tokens that steps under way will bring."""
    present: bool = False
    """Whether the ranks hold a cache of it."""
    fresh: bool = True
    """Nothing was fed yet: it begins, or begins with what is stored."""
    answer_kept: bool = False
    stops: set[int] = field(default_factory=set)
    """Where its windows and states are to be kept: no chunk goes over such a place."""
    cached: int | None = None
    """How much of the prompt was stored when it began; None: it never has."""
    stored: int = 0
    """How much of the prompt was stored for others since."""
    first_forward: float | None = None
    first_token: float | None = None
    hit: tuple[tuple[int, int], Hit] | None = None
    """What was stored for it when it was last looked for, and when that was."""
    files: list[Saved] | None = None
    """What is read for it from disk; None: nobody has looked."""
    lost_at: int | None = None
    """How many tokens it had when a step that it was in was lost."""
    suspected: bool = False
    """It may be what ends ranks: it runs alone until it has more tokens than then."""
    spoiled: int = 0
    """Of the tokens that steps under way will bring, those that followed one that never came."""
    in_common: dict[int, int] = field(default_factory=dict)
    """By the number of another sequence: how many tokens both begin with."""

    @property
    def prompt_left(self) -> int:
        return len(self.filling) - self.fed

    @property
    def may_still_draw(self) -> int:
        """How many tokens, at most, behind those that steps under way will bring."""
        return self.request.max_tokens - len(self.output) - self.expected

    @property
    def may_decode(self) -> bool:
        return self.may_still_draw > 0

    @property
    def position(self) -> int:
        """Where the next token to be sampled will stand, counted from the first prompt token."""
        return len(self.request.prompt) + len(self.output)

    @property
    def length(self) -> int:
        """Of its cache, once all steps that were sent are done."""
        return self.fed + self.drawn

    @property
    def soon(self) -> int:
        """How long its cache is about to be."""
        longest = len(self.request.prompt) + self.request.max_tokens
        return min(longest, max(self.length + 1, len(self.filling) + HEADROOM))

    @property
    def kept(self) -> bool:
        """Whether what it computes is kept for others, and what others computed is used for it."""
        return not self.request.uncached and self.request.pooling is None

    @property
    def pinned(self) -> bool:
        return self.request.pinned or bool(self.request.conversation)

    def begin(self, length: int) -> None:
        """Begin, or begin again, with so many tokens in its cache."""
        self.fed, self.drawn = length, 0
        self.fresh, self.answer_kept = True, False
        cached = min(length, len(self.request.prompt))
        self.cached = cached if self.cached is None else min(self.cached, cached)

    def lose(self) -> None:
        """No rank holds anything of it any more, and what was under way will not come."""
        self.fed = self.drawn = self.expected = self.spoiled = 0
        self.present, self.hit, self.files = False, None, None
        self.stops.clear()

    def next_tokens(self, size: int) -> tuple[int, ...]:
        """The next part of the prompt, handed out for a step."""
        tokens = self.filling[self.fed : self.fed + size]
        self.fed += size
        self.fresh = False
        return tokens

    def chunk(self, most: int) -> int:
        """How many tokens to feed next: at most so many, and no further than the next stop."""
        stops = (stop - self.fed for stop in self.stops if stop > self.fed)
        return min(self.prompt_left, most, *stops)

    def timing(self, now: float, stopped: bool) -> Timing:
        began = self.first_forward if self.first_forward is not None else now
        first = self.first_token if self.first_token is not None else now
        return Timing(
            queue_seconds=began - self.arrived,
            prompt_seconds=first - began,
            generation_seconds=now - first,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached or 0,
            generated_tokens=len(self.output) + stopped,
            stored_tokens=self.stored,
        )


@dataclass(slots=True)
class Lane:
    """Streams that decode together."""

    number: int
    sequences: list[Sequence] = field(default_factory=list)
    under_way: int = 0
    """Decodes that were sent and are not home yet."""
    last_decode: int = 0
    """The number of the step that sent the last one."""
    prefilled: float = 0.0
    """What the prompts fed since then cost."""

    @property
    def running(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if sequence.may_decode]

    def ready(self, lookahead: bool) -> list[Sequence]:
        """Who can decode now."""
        if lookahead:
            # One is computed while the next waits for its token: more would only be thrown away when a stream ends.
            return self.running if self.under_way < 2 else []
        # Whoever got its first token meanwhile joins at the next decode, and nobody before those who stand in front of
        # it, since rows join in this order.
        return [] if self.under_way else list(takewhile(lambda sequence: not sequence.expected, self.running))


def beginning_together(first: Sequence, size: int, filling: list[Sequence], budget: int) -> list[Sequence]:
    """Who else begins, at the same place, with at least so much to read: equally long chunks are one rectangle, which
    nothing pads.
    """

    def alike(other: Sequence) -> bool:
        begins = other.fresh and other.fed == first.fed and not other.request.pooling
        return begins and other is not first and other.chunk(size) == size

    if not first.fresh or first.request.pooling:
        return [first]
    return [first, *filter(alike, filling)][: max(1, budget // size)]
