"""Streams watched token by token: how fast all of them decode once all do, and how long one stands still.

The models that are served so say words with a capital and nothing else, one a token: whatever pieces a server sends,
its capitals are its tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from benchmarks.load import REQUEST_SECONDS, answering, body, event_text, events
from benchmarks.servers import HttpServer, ServerFailed

BEGUN = 8
"""Tokens after which a stream that is to be disturbed counts as running."""


def words(text: str) -> int:
    return sum(map(str.isupper, text))


class Window:
    """From the first moment at which every stream has a token until one of them has so many more, or ends."""

    def __init__(self, streams: Sequence[Hashable], tokens: int) -> None:
        self._waiting = set(streams)
        self._most = tokens
        self._tokens = dict.fromkeys(streams, 0)
        self.opened: float | None = None
        self.closed: float | None = None

    def add(self, stream: Hashable, moment: float, tokens: int) -> None:
        if self.closed is not None:
            return
        if self.opened is not None:
            self._tokens[stream] += tokens
            if self._tokens[stream] >= self._most:
                self.closed = moment
        self._waiting.discard(stream)
        if not self._waiting and self.opened is None:
            self.opened = moment

    def end(self, moment: float) -> None:
        """One of them has ended."""
        self.closed = moment if self.closed is None else self.closed

    @property
    def rate(self) -> float:
        """Tokens per second of all streams together."""
        if self.opened is None or self.closed is None or not self.closed > self.opened:
            raise ServerFailed("a stream ended before all of them decoded: ask for more tokens (--tokens)")
        return sum(self._tokens.values()) / (self.closed - self.opened)


@dataclass(frozen=True)
class Decoded:
    rate: float
    """Tokens per second of all streams, once all decoded."""
    first_seconds: float
    """Until the last of them had its first token."""
    client_share: float
    """Of a core, that the client itself took meanwhile: near 1, it is what was measured."""


def all_decode(server: HttpServer, prompts: Sequence[str], tokens: int, most: int) -> Decoded:
    """All prompts at once. The streams, which ask for `most` tokens, are left once one has so many since all decode."""
    return asyncio.run(_all_decode(server, [body(prompt, most) for prompt in prompts], tokens))


async def _all_decode(server: HttpServer, bodies: Sequence[dict[str, Any]], tokens: int) -> Decoded:
    window = Window(range(len(bodies)), tokens)
    begin, worked = time.perf_counter(), 0.0

    async def follow(number: int, sent: dict[str, Any]) -> None:
        def heard(moment: float, count: int) -> bool:
            nonlocal worked
            waited = window.opened is None
            window.add(number, moment, count)
            if waited and window.opened:
                worked = time.process_time()
            return window.closed is not None

        if await _follow(client, server, sent, heard):
            window.end(time.perf_counter())

    async with _client(len(bodies)) as client, asyncio.timeout(REQUEST_SECONDS), _failing() as group:
        for number, sent in enumerate(bodies):
            group.create_task(follow(number, sent))
    rate = window.rate
    assert window.opened is not None
    share = (time.process_time() - worked) / (time.perf_counter() - window.opened)
    return Decoded(rate, window.opened - begin, share)


@dataclass(frozen=True)
class Reading:
    """Prompts that came all at once while other streams were decoding."""

    seconds: float
    """Until the last of them had its first token."""
    first_seconds: tuple[float, ...]
    running_pauses: tuple[float, ...]
    """The longest of each stream that ran already."""
    begun_pauses: tuple[float, ...]
    """The longest of each of the new ones, from its first token on."""


def read_beside(server: HttpServer, running: Sequence[str], prompts: Sequence[str], most: tuple[int, int]) -> Reading:
    """`most`: tokens that those who run ask for, and those who come."""
    bodies = [body(prompt, most[0]) for prompt in running], [body(prompt, most[1]) for prompt in prompts]
    return asyncio.run(_read_beside(server, *bodies))


@dataclass
class _Flow:
    moments: list[float] = field(default_factory=list)
    tokens: int = 0


async def _read_beside(
    server: HttpServer, running: Sequence[dict[str, Any]], coming: Sequence[dict[str, Any]]
) -> Reading:
    old, new = [_Flow() for _ in running], [_Flow() for _ in coming]
    changed = asyncio.Event()
    over: float | None = None

    async def follow(sent: dict[str, Any], flow: _Flow) -> None:
        def heard(moment: float, count: int) -> bool:
            flow.moments.append(moment)
            flow.tokens += count
            changed.set()
            return over is not None

        if await _follow(client, server, sent, heard) and over is None:
            raise ServerFailed(
                f"{server.name} ended a stream before all prompts were read: it asked for too few tokens"
            )

    async def until(holds: Callable[[], bool]) -> None:
        while not holds():
            changed.clear()
            await changed.wait()

    async with _client(len(running) + len(coming)) as client, asyncio.timeout(REQUEST_SECONDS), _failing() as group:
        for sent, flow in zip(running, old, strict=True):
            group.create_task(follow(sent, flow))
        await until(lambda: all(flow.tokens >= BEGUN for flow in old))
        begin = time.perf_counter()
        for sent, flow in zip(coming, new, strict=True):
            group.create_task(follow(sent, flow))
        await until(lambda: all(flow.moments for flow in new))
        over = max(flow.moments[0] for flow in new)
    return Reading(
        over - begin,
        tuple(flow.moments[0] - begin for flow in new),
        tuple(longest_pause(flow.moments, begin) for flow in old),
        tuple(longest_pause(flow.moments, begin) for flow in new),
    )


@asynccontextmanager
async def _failing() -> AsyncIterator[asyncio.TaskGroup]:
    """A group of tasks whose first failure is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


def longest_pause(moments: Sequence[float], begin: float) -> float:
    """Between two pieces of text, of which the later one came after the beginning."""
    return max((later - earlier for earlier, later in pairwise(moments) if later > begin), default=0.0)


async def _follow(
    client: httpx.AsyncClient, server: HttpServer, sent: dict[str, Any], heard: Callable[[float, int], bool]
) -> bool:
    """Tell of each piece of text and its tokens, until that was enough; True: the stream has ended before."""
    async with answering(client, server, "/v1/completions", sent) as response:
        async for data in events(response):
            if (piece := event_text(data)) and heard(time.perf_counter(), words(piece)):
                return False
    return True


def _client(connections: int) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=connections)
    return httpx.AsyncClient(timeout=REQUEST_SECONDS, trust_env=False, limits=limits)
