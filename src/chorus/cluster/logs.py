"""The logs of a cluster: what they are called, how they are read, and how a rank's output gets there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from chorus.platform.process.output import RotatingLog

_BLOCK = 64 << 10


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
    """What is added to a file from a position on; goes on in the new file when it is rotated away."""
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
