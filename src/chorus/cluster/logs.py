"""The logs of a node: what they are called, how they are read, and how output gets there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from chorus.platform.process.output import RotatingLog, Screen

COORDINATOR = "coordinator"
"""What the machine that leads is called where it has no other name."""
_BLOCK = 64 << 10
_REST_SECONDS = 1.0
"""How long what was printed last may take to get to the log; a child that lives on keeps the pipe open."""


def device_log(folder: Path, device_id: str) -> Path:
    return folder / f"{device_id}_server.log"


def tail(path: Path, lines: int) -> tuple[bytes, int]:
    """The last lines of a file, and the position after them."""
    if not path.is_file():
        return b"", 0
    with path.open("rb") as stream:
        end = stream.seek(0, 2)
        start, found = end, b""
        while start > 0 and found.count(b"\n") <= lines:
            start = max(0, start - _BLOCK)
            stream.seek(start)
            found = stream.read(end - start)
    kept = found.splitlines(keepends=True)[-lines:] if lines else []
    return b"".join(kept), end


async def follow(path: Path, position: int, poll_seconds: float = 0.2) -> AsyncIterator[bytes]:
    """Yield what is added to a file from a position on, also in the new file after it was rotated."""
    inode: int | None = None
    while True:
        try:
            stat = path.stat()
        except FileNotFoundError:
            await asyncio.sleep(poll_seconds)
            continue
        if (inode is not None and stat.st_ino != inode) or stat.st_size < position:
            position = 0
        inode = stat.st_ino
        if stat.st_size > position:
            with path.open("rb") as stream:
                stream.seek(position)
                data = stream.read(_BLOCK)
            position += len(data)
            yield data
        else:
            await asyncio.sleep(poll_seconds)


async def pump(stream: asyncio.StreamReader, log: RotatingLog) -> bytes:
    """Copy a child's output into a log until it ends; answers its last line."""
    last, rest = b"", b""
    while data := await stream.read(_BLOCK):
        log.write(data)
        *whole, rest = (rest + data).split(b"\n")
        last = next((line for line in reversed(whole) if line.strip()), last)
        rest = rest[-_BLOCK:]
    return rest if rest.strip() else last


@contextlib.contextmanager
def copied_output(log: RotatingLog) -> Iterator[None]:
    """Everything that this process and its children print goes to a log too: a thread passes it on to both places.

    Neither of them can stop it: whoever prints would soon wait for a pipe that nobody empties.
    """
    before = [os.dup(1), os.dup(2)]
    screen = Screen(before[0])
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    os.close(writer)

    def copy() -> None:
        while data := os.read(reader, _BLOCK):
            for place in (log, screen):
                with contextlib.suppress(Exception):
                    place.write(data)

    thread = threading.Thread(target=copy, name="output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.dup2(before[0], 1)
        os.dup2(before[1], 2)
        thread.join(_REST_SECONDS)
