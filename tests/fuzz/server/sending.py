"""Sends a fuzzed request over a connection of its own, and judges what came back."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from tests.fuzz.server.attempts import Attempt

CONNECT_SECONDS = 30.0
MOST_READ = 8 * 1024 * 1024

Ending = Literal["whole", "left", "impatient", "refused"]


@dataclass(frozen=True)
class Answer:
    ending: Ending
    """`whole`: the server closed; `left`: the client had enough; `impatient`: it waited no longer."""
    data: bytes
    seconds: float

    @property
    def statuses(self) -> list[int]:
        """Of each response: there are several where requests were pipelined."""
        return [int(code) for code in re.findall(rb"(?:^|\n|\})HTTP/1\.1 (\d{3}) ", self.data)]

    @property
    def status(self) -> int | None:
        return next(iter(self.statuses), None)


async def send(attempt: Attempt, port: int) -> Answer:
    begin = time.monotonic()
    received = bytearray()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except (OSError, TimeoutError):
        return Answer("refused", b"", time.monotonic() - begin)
    ending: Ending = "whole"
    try:
        async with asyncio.timeout(attempt.patience):
            # Both at once: a server that has answered and closed takes no more, and its answer is still to be read.
            sender = asyncio.create_task(_write(attempt, writer))
            try:
                while data := await reader.read(65536):
                    received += data
                    if len(received) >= min(attempt.leave_after or MOST_READ, MOST_READ):
                        ending = "left"
                        break
            finally:
                sender.cancel()
                with suppress(asyncio.CancelledError):
                    await sender
    except TimeoutError:
        ending = "impatient"
    except OSError:
        pass
    writer.transport.abort()
    return Answer(ending, bytes(received), time.monotonic() - begin)


async def _write(attempt: Attempt, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        for piece in attempt.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(attempt.pause)


def problem(attempt: Attempt, answer: Answer) -> str | None:
    """What is wrong with an answer, whatever was asked; None where nothing is."""
    if answer.ending == "refused":
        return "no connection"
    for status in answer.statuses:
        if status >= 500 and not _is_honest(status, answer):
            return f"status {status}"
    if b"text/event-stream" in answer.data and (found := _SERVER_ERROR.search(answer.data)):
        return f"a stream with {found[0].decode()}"
    if attempt.owed and answer.status is None:
        return "no answer in time" if answer.ending == "impatient" else "closed without an answer"
    if attempt.owed and answer.ending == "impatient":
        return "no end of the answer in time"
    return None


_SERVER_ERROR = re.compile(rb'"type": ?"(server_error|api_error)"')


def _is_honest(status: int, answer: Answer) -> bool:
    """A 503 says when to come again."""
    return status == 503 and b"\nretry-after:" in answer.data.lower()
