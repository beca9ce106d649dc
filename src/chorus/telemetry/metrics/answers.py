"""What the clients of one model get, counted in their front end: tokens, how each answer ended, what it took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from chorus.messages.engine import Request, Timing
from chorus.messages.figures import Figure
from chorus.telemetry.metrics import declared
from chorus.telemetry.metrics.declared import FINISHED_REASONS
from chorus.telemetry.metrics.histogram import Histogram


class AnswerCounts:
    """Of one model, since the front end began: they stay when the model is unloaded."""

    def __init__(self) -> None:
        self.generation_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.lost = 0
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self.first_token = Histogram(declared.FIRST_TOKEN)
        self.inter_token = Histogram(declared.INTER_TOKEN)
        self.time_per_token = Histogram(declared.TIME_PER_TOKEN)
        self.e2e = Histogram(declared.E2E)
        self.queue = Histogram(declared.QUEUE)
        self.prefill = Histogram(declared.PREFILL)
        self.decode = Histogram(declared.DECODE)
        self.inference = Histogram(declared.INFERENCE)
        self.request_prompt_tokens = Histogram(declared.REQUEST_PROMPT_TOKENS)
        self.request_generation_tokens = Histogram(declared.REQUEST_GENERATION_TOKENS)
        self.most_generation_tokens = Histogram(declared.MOST_GENERATION_TOKENS)
        self.choices = Histogram(declared.PARAMS_N)
        self.max_tokens = Histogram(declared.PARAMS_MAX_TOKENS)

    def embedded(self, prompts: Sequence[int], seconds: float) -> None:
        """A request for embeddings was answered; `prompts` are the lengths of its texts."""
        self.prompt_tokens += sum(prompts)
        self.finished["stop"] += 1
        self.e2e.observe(seconds)
        for length in prompts:
            self.request_prompt_tokens.observe(length)

    def figures(self) -> Iterator[Figure]:
        yield Figure(declared.GENERATION_TOKENS.name, value=self.generation_tokens)
        yield Figure(declared.PROMPT_TOKENS.name, value=self.prompt_tokens)
        yield Figure(declared.PROMPT_TOKENS_CACHED.name, value=self.cached_tokens)
        yield Figure(declared.REQUESTS_LOST.name, value=self.lost)
        for reason, count in self.finished.items():
            yield Figure(declared.REQUEST_SUCCESS.name, (reason,), count)
        for part in vars(self).values():
            if isinstance(part, Histogram):
                yield part.figure()


class RequestMeter:
    """Of one request, with all the answers that it asks for."""

    def __init__(self, counts: AnswerCounts, requests: Sequence[Request], per_prompt: int) -> None:
        """`per_prompt`: so many of the requests in a row ask the same."""
        self.counts = counts
        self.arrived = time.monotonic()
        self.per_prompt = per_prompt
        self.answers = [AnswerMeter(self, request, number // per_prompt) for number, request in enumerate(requests)]
        self._open = [per_prompt] * (len(requests) // per_prompt)
        """Of each prompt, how many answers have not ended."""
        self._stored: dict[int, int] = {}
        """Of each prompt that was read, by its number, what every engine that has read it found stored."""
        self.lengths: list[int] = []
        """Of the answers that are complete."""

    def refuse(self) -> None:
        """The engine takes none of it: nothing has begun that could end."""
        for answer in self.answers:
            answer.ended = True

    def read(self, prompt: int, stored: int) -> bool:
        """Whether this is the first that is heard of it."""
        first = prompt not in self._stored
        self._stored[prompt] = stored if first else min(stored, self._stored[prompt])
        return first

    def answered(self, prompt: int) -> None:
        """One more answer to it has ended. Another engine may find less stored than the one before, so that only the
        last of them tells what its client is told.
        """
        self._open[prompt] -= 1
        if not self._open[prompt]:
            self.counts.cached_tokens += self._stored.get(prompt, 0)

    def fail(self, lost: bool) -> None:
        """What is not complete never will be."""
        failed = sum(answer.finish("error") for answer in self.answers)
        self.counts.lost += failed if lost else 0

    def close(self) -> None:
        """Whoever asked has all of it, or left."""
        for answer in self.answers:
            answer.finish("abort")


class AnswerMeter:
    """Of one answer. What is called for every token does as little as it can."""

    __slots__ = ("_counts", "_first", "_last", "_length", "_max_tokens", "_prompt", "_request", "_tokens", "ended")

    def __init__(self, request: RequestMeter, asked: Request, prompt: int) -> None:
        self._request = request
        self._counts = request.counts
        self._prompt = prompt
        self._length = len(asked.prompt)
        self._max_tokens = asked.max_tokens
        self._tokens = 0
        self._first = self._last = 0.0
        self.ended = False

    def tokens(self, number: int, now: float) -> None:
        """So many more have come."""
        self._counts.generation_tokens += number
        if self._tokens:
            self._counts.inter_token.observe(now - self._last)
        else:
            self._first = now
            self._counts.first_token.observe(now - self._request.arrived)
        self._tokens += number
        self._last = now

    def prompt_read(self, timing: Timing | None) -> None:
        """However many answers a prompt gets, it is read and counted once, for the first of them to come."""
        if self._request.read(self._prompt, timing.cached_tokens if timing else 0):
            self._counts.prompt_tokens += self._length

    def end(self, reason: str, generated: int, timing: Timing | None) -> None:
        """It is complete: with so many tokens, one that nobody is shown among them, and as the engine timed it."""
        counts, request = self._counts, self._request
        counts.generation_tokens += generated - self._tokens
        self.prompt_read(timing)
        if not self.finish(reason):
            return
        counts.e2e.observe(time.monotonic() - request.arrived)
        if self._tokens > 1:
            counts.time_per_token.observe((self._last - self._first) / (self._tokens - 1))
        if timing:
            counts.queue.observe(timing.queue_seconds)
            counts.prefill.observe(timing.prompt_seconds)
            counts.decode.observe(timing.generation_seconds)
            counts.inference.observe(timing.prompt_seconds + timing.generation_seconds)
        counts.request_prompt_tokens.observe(self._length)
        counts.request_generation_tokens.observe(generated)
        counts.max_tokens.observe(self._max_tokens)
        request.lengths.append(generated)
        if len(request.lengths) == len(request.answers):
            counts.choices.observe(request.per_prompt)
            counts.most_generation_tokens.observe(max(request.lengths))

    def finish(self, reason: str) -> bool:
        """Whether it has ended with this: the first reason stands."""
        if self.ended:
            return False
        self.ended = True
        self._counts.finished[reason] += 1
        self._request.answered(self._prompt)
        return True
