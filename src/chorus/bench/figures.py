"""What the moments at which text came say about a server: pure functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

Span = tuple[float, float]


@dataclass(frozen=True)
class Answer:
    """One request, in seconds since its round began."""

    sent: float
    arrivals: tuple[float, ...]
    """When each piece of text came: usually a token each."""
    ended: float
    prompt_tokens: int | None
    completion_tokens: int
    cached_tokens: int | None
    """None where the server does not tell, as its prompt tokens."""

    @property
    def first_seconds(self) -> float | None:
        """Until the first text; None where there was none."""
        return self.arrivals[0] - self.sent if self.arrivals else None

    @property
    def decoding(self) -> Span | None:
        """From the first text to the last; None where nothing came in between."""
        return (self.arrivals[0], self.arrivals[-1]) if self.arrivals and self.arrivals[-1] > self.arrivals[0] else None

    def tokens_until(self, moment: float) -> float:
        """How many tokens had come: each piece after the first is taken for equally many, evenly on their way."""
        before = bisect_right(self.arrivals, moment)
        if before == 0:
            return 0.0
        pieces = float(before - 1)
        if before < len(self.arrivals):
            last, following = self.arrivals[before - 1], self.arrivals[before]
            pieces += (moment - last) / (following - last)
        return 1.0 + pieces * max(0, self.completion_tokens - 1) / max(1, len(self.arrivals) - 1)


@dataclass(frozen=True)
class Round:
    """Everything that was asked at a time, and how long it took."""

    together: int
    """So many streams, or agents."""
    seconds: float
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Figures:
    """What one round, or several of them, showed; None where there is nothing to tell."""

    prompt_tokens: float | None
    """Of one answer on average, as are the next two."""
    cached_tokens: float | None
    completion_tokens: float
    first_token_seconds: float | None
    first_token_p95_seconds: float | None
    decode_tokens_per_second: float | None
    """Of all streams together, while all of them decode."""
    tokens_per_second: float | None
    """Of all streams together, waiting and prompts included."""
    prompt_tokens_per_second: float | None
    """Those that were not cached, over the time in which anybody waited for a first token."""
    gap_seconds: float | None
    """Between one piece of text and the next, median."""
    gap_p99_seconds: float | None
    longest_pause_seconds: float | None


def figures(rounds: Sequence[Round]) -> Figures:
    """Moments are taken from all rounds as one; of what a round has one of, the median is taken."""
    answers = [answer for each in rounds for answer in each.answers]
    firsts = [answer.first_seconds for answer in answers if answer.first_seconds is not None]
    gaps = [later - earlier for answer in answers for earlier, later in pairwise(answer.arrivals)]
    return Figures(
        prompt_tokens=_mean(answer.prompt_tokens for answer in answers),
        cached_tokens=_mean(answer.cached_tokens for answer in answers),
        completion_tokens=fmean(answer.completion_tokens for answer in answers) if answers else 0.0,
        first_token_seconds=percentile(firsts, 0.5),
        first_token_p95_seconds=percentile(firsts, 0.95),
        decode_tokens_per_second=_median(decode_rate(each.answers, each.together) for each in rounds),
        tokens_per_second=_median(rate(each) for each in rounds),
        prompt_tokens_per_second=_median(prompt_rate(each.answers) for each in rounds),
        gap_seconds=percentile(gaps, 0.5),
        gap_p99_seconds=percentile(gaps, 0.99),
        longest_pause_seconds=max(gaps, default=None),
    )


def rate(measured: Round) -> float | None:
    tokens = sum(answer.completion_tokens for answer in measured.answers)
    return tokens / measured.seconds if measured.seconds > 0 else None


def decode_rate(answers: Iterable[Answer], together: int) -> float | None:
    """Tokens per second of all while so many decode at once; None where they never did."""
    decoding = [(answer, answer.decoding) for answer in answers]
    spans = [(answer, span) for answer, span in decoding if span]
    seconds = tokens = 0.0
    for begin, end in overlaps([span for _, span in spans], together):
        seconds += end - begin
        for answer, (first, last) in spans:
            if first < end and last > begin:
                tokens += answer.tokens_until(min(end, last)) - answer.tokens_until(max(begin, first))
    return tokens / seconds if seconds > 0 else None


def prompt_rate(answers: Iterable[Answer]) -> float | None:
    answered = [answer for answer in answers if answer.arrivals and answer.prompt_tokens is not None]
    tokens = sum((answer.prompt_tokens or 0) - (answer.cached_tokens or 0) for answer in answered)
    seconds = sum(end - begin for begin, end in overlaps([(each.sent, each.arrivals[0]) for each in answered], 1))
    return tokens / seconds if seconds > 0 else None


def overlaps(spans: Sequence[Span], together: int) -> list[Span]:
    """When at least so many of the spans were under way at once."""
    found: list[Span] = []
    running, since = 0, 0.0
    # Where one ends as another begins, the end comes first: they were not under way at once.
    for moment, change in sorted([*((begin, 1) for begin, _ in spans), *((end, -1) for _, end in spans)]):
        if running >= together > running + change and moment > since:
            found.append((since, moment))
        if running < together <= running + change:
            since = moment
        running += change
    return found


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which this share of them lies, between two of them in proportion."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _mean(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
