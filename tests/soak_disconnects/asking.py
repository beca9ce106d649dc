"""One request over a connection of its own, and the moment at which its client goes away."""

from __future__ import annotations

import asyncio
import enum
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.fuzz.server.attempts import request

CONNECT_SECONDS = 30.0
ANSWER_SECONDS = 180.0
"""Far beyond what any answer takes, recoveries included."""
LOOK_SECONDS = 0.02
SLOW_GRAMMAR = {"type": "integer", "multipleOf": 6_000_011}
"""Is compiled until it takes too much memory, which takes seconds."""
NO_END = {"0": -100, "2": -100}
VOCABULARY = 512


class Moment(enum.StrEnum):
    """When a client leaves."""

    HALF = "half of the request was sent"
    SENT = "all of it was sent"
    QUEUED = "it waits"
    PROMPT = "its prompt is read"
    GRAMMAR = "its grammar is compiled"
    FIRST = "its first token has come"
    MIDDLE = "more tokens have come"
    LAST = "its last token has come"
    RECOVERY = "a rank is replaced"
    NEVER = "all has come"


@dataclass
class View:
    """What the server last said of itself."""

    state: str = "ready"
    running: int = 0
    queued: int = 0
    step: int = 0
    looks: int = 0


@dataclass(frozen=True)
class Ask:
    number: int
    moment: Moment
    path: str
    body: dict[str, Any]
    events: int
    """How many it waits for where tokens have to come."""
    flees: bool
    """Whether it also leaves when a rank is lost."""

    @property
    def content(self) -> bytes:
        return request("POST", self.path, json.dumps(self.body).encode(), key=None)


@dataclass(frozen=True)
class Outcome:
    moment: Moment
    fault: str | None = None


def drawn(seed: int, number: int) -> Ask:
    """Everything follows from the seed and the number."""
    rng = random.Random(f"{seed}/{number}")
    moments = list(Moment)
    moment = moments[number % len(moments)]
    long = moment in (Moment.RECOVERY, Moment.MIDDLE, Moment.QUEUED)
    tokens = rng.randint(150, 300) if long else rng.randint(2, 40)
    path, body = _body(rng, moment, tokens)
    return Ask(number, moment, path, body, rng.randint(2, 60), flees=rng.random() < 0.5)


def _body(rng: random.Random, moment: Moment, tokens: int) -> tuple[str, dict[str, Any]]:
    stream = moment not in (Moment.HALF, Moment.NEVER) or rng.random() < 0.7
    size = rng.randint(1300, 1700) if moment is Moment.PROMPT else rng.randint(1, 300)
    shared = {"stream": stream, "temperature": rng.choice([0, 1.0]), "max_tokens": tokens}
    plain = {"prompt": [rng.randrange(3, VOCABULARY) for _ in range(size)], "logit_bias": NO_END}
    if moment is Moment.GRAMMAR:
        return "/v1/completions", {**shared, **plain, "guided_json": SLOW_GRAMMAR}
    if moment in (Moment.PROMPT, Moment.QUEUED, Moment.RECOVERY):
        return "/v1/completions", {**shared, **plain, "seed": rng.randrange(1 << 30)}
    message = [{"role": "user", "content": "".join(rng.choices("abcdefgh ", k=size))}]
    return rng.choice(
        (
            ("/v1/completions", {**shared, **plain, "logprobs": 2}),
            ("/v1/completions", {**shared, **plain, "n": 2, "frequency_penalty": 0.5}),
            ("/v1/completions", {**shared, **plain, "guided_regex": "[a-z ]{400}"}),
            ("/v1/chat/completions", {**shared, "messages": message, "logit_bias": NO_END}),
            ("/v1/messages", {**shared, "messages": message}),
            ("/v1/responses", {"stream": stream, "input": message, "max_output_tokens": tokens}),
        )
    )


class Heard:
    """What has come so far."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.news = asyncio.Event()
        self.closed = False

    @property
    def events(self) -> int:
        return self.data.count(b"data: {")

    @property
    def finished(self) -> bool:
        """The last token has come, whatever follows it."""
        endings = (b'"finish_reason":"', b'"stop_reason":"', b'"response.completed"', b'"response.incomplete"')
        return any(ending in self.data for ending in endings)

    def fault(self, streamed: bool) -> str | None:
        """What is wrong with an answer that was read to its end."""
        head, _, rest = bytes(self.data).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            return f"answered with {bytes(self.data[:400]).decode(errors='replace')!r}"
        if streamed and (at := rest.find(b'"error":{')) >= 0:
            return f"ended with {rest[at - 50 : at + 300].decode(errors='replace')!r}"
        return None if self.finished or b'"status":"' in rest else "ended without a reason"

    async def read(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(65536):
                self.data += data
                self.news.set()
        except OSError:
            pass
        finally:
            self.closed = True
            self.news.set()


async def ask(asked: Ask, port: int, view: View, compiling: Callable[[], Awaitable[bool]]) -> Outcome:
    """Sends it and leaves when its moment has come; says which moment that was in the end."""
    async with asyncio.timeout(CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = Heard()
    reading = asyncio.create_task(heard.read(reader))
    try:
        content = asked.content
        writer.write(content[: len(content) // 2] if asked.moment is Moment.HALF else content)
        await writer.drain()
        if asked.moment in (Moment.HALF, Moment.SENT):
            return Outcome(asked.moment)
        async with asyncio.timeout(ANSWER_SECONDS):
            left = await _until_it_leaves(asked, heard, view, compiling)
        if left is Moment.NEVER and asked.moment is not Moment.GRAMMAR:
            return Outcome(left, heard.fault(asked.body["stream"]))
        return Outcome(left)
    except TimeoutError:
        return Outcome(asked.moment, f"not answered within {ANSWER_SECONDS:g} s: {bytes(heard.data[-300:])!r}")
    except OSError as error:
        return Outcome(asked.moment, f"connection lost: {error}")
    finally:
        reading.cancel()
        writer.transport.abort()


async def _until_it_leaves(asked: Ask, heard: Heard, view: View, compiling: Callable[[], Awaitable[bool]]) -> Moment:
    asked_at = view.looks
    while not heard.closed:
        lost = view.state != "ready" and view.looks > asked_at
        # What the server said of itself before it could have this request says nothing of it.
        waits = not heard.events and view.looks > asked_at + 1
        match asked.moment:
            case _ if lost and (asked.flees or asked.moment is Moment.RECOVERY):
                return Moment.RECOVERY
            case Moment.QUEUED if waits and view.queued:
                return Moment.QUEUED
            case Moment.PROMPT if waits and view.running and not view.queued:
                return Moment.PROMPT
            case Moment.GRAMMAR if await compiling():
                return Moment.GRAMMAR
            case Moment.FIRST if heard.events:
                return Moment.FIRST
            case Moment.MIDDLE if heard.events >= asked.events:
                return Moment.MIDDLE
            case Moment.LAST if heard.finished:
                return Moment.LAST
        heard.news.clear()
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await heard.news.wait()
        except TimeoutError:
            pass
    return Moment.NEVER
