"""The journal of events on disk: lines of JSON in two files of bounded size, written by all processes of one user.

Each line is one write to the end of the file, so lines of several processes never mix. What a full disk or a dying
machine cut off is skipped by whoever reads, and ended by whoever writes next.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from chorus.telemetry.events import Event

FILE_BYTES = 4 << 20
"""From this size on a file becomes the older one, and the one before it goes."""
_LONGEST_LINE = 16 << 10
_BLOCK = 64 << 10
_TIME = re.compile(rb'\{"time": (\d+(?:\.\d+)?),')
"""How the lines that we write begin: those of other times are passed over without reading the rest of them."""


def folder_in(state: Path) -> Path:
    """Where the journal lies in a state folder."""
    return state / "events"


def newer_file(folder: Path) -> Path:
    return folder / "events.jsonl"


def older_file(folder: Path) -> Path:
    return folder / "events.1.jsonl"


def append(folder: Path, event: Event, most: int = FILE_BYTES) -> bool:
    """Whether it is written; where the disk does not take it, it is lost."""
    line = json.dumps(event.shown(), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _size(newer_file(folder)) + len(line) > most:
            _rotate(folder, len(line), most)
        descriptor = os.open(newer_file(folder), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size > 2 * most:  # nobody could rotate it
                return False
            # One that another process is just writing may look cut off too; an empty line more is no harm.
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            return os.write(descriptor, line) == len(line)
        finally:
            os.close(descriptor)
    except OSError:
        return False


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _rotate(folder: Path, more: int, most: int) -> None:
    """One process does so; another that comes at the same time goes on with whichever file there is."""
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        if _size(newer_file(folder)) + more > most:
            newer_file(folder).replace(older_file(folder))


def read(
    folder: Path, since: float = 0.0, limit: int | None = None, wanted: Callable[[Event], bool] = lambda event: True
) -> list[Event]:
    """What happened since then, the latest last; with a limit, the latest of them."""
    found: list[Event] = []
    for line in _lines_backwards(folder):
        # Clocks are set back and forth: one that is older says nothing of those before it.
        if (written := _TIME.match(line)) and float(written[1]) < since:
            continue
        event = Event.read(line)
        if event and event.time >= since and wanted(event):
            found.append(event)
            if limit is not None and len(found) >= limit:
                break
    return found[::-1]


def _lines_backwards(folder: Path) -> Iterator[bytes]:
    with contextlib.ExitStack() as opened:
        for stream in _open_both(folder, opened):
            with contextlib.suppress(OSError):
                yield from _backwards(stream)


def _open_both(folder: Path, opened: contextlib.ExitStack) -> list[BinaryIO]:
    """The newer file, then the older one; both before either is read. Where the one has become the other meanwhile,
    there are others by now."""
    for _ in range(2):
        opened.close()
        files: list[BinaryIO] = []
        for file in (newer_file(folder), older_file(folder)):
            with contextlib.suppress(OSError):
                files.append(opened.enter_context(file.open("rb")))
        if len({os.fstat(file.fileno()).st_ino for file in files}) == len(files):
            break
    return files


def _backwards(stream: BinaryIO) -> Iterator[bytes]:
    end = min(stream.seek(0, os.SEEK_END), 3 * FILE_BYTES)
    rest = b""
    while end:
        begin = max(0, end - _BLOCK)
        stream.seek(begin)
        first, *whole = (stream.read(end - begin) + rest).split(b"\n")
        yield from (line for line in reversed(whole) if line)
        # A line without an end is no line of ours: what is kept of it stays bounded.
        rest, end = first[:_LONGEST_LINE], begin
    if rest:
        yield rest


class Tail:
    """What is added to a journal from now on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inode, self._position = 0, 0
        with contextlib.suppress(OSError):
            status = newer_file(folder).stat()
            self._inode, self._position = status.st_ino, status.st_size

    def new(self) -> list[Event]:
        """What came since the last look, its order kept; empty where nothing did."""
        try:
            status = newer_file(self._folder).stat()
        except OSError:
            return []
        found: list[bytes] = []
        if status.st_ino != self._inode:
            with contextlib.suppress(OSError):
                older = older_file(self._folder)
                if self._inode and older.stat().st_ino == self._inode:
                    found += self._lines(older)
            self._inode, self._position = status.st_ino, 0
        if status.st_size < self._position:  # emptied, or removed and made again under the same number
            self._position = 0
        if status.st_size > self._position:
            with contextlib.suppress(OSError):
                found += self._lines(newer_file(self._folder))
        return [event for line in found if (event := Event.read(line))]

    def _lines(self, file: Path) -> list[bytes]:
        """Whole ones: what is still being written is for the next look."""
        with file.open("rb") as stream:
            stream.seek(self._position)
            read = stream.read(2 * FILE_BYTES)
        whole, end, _ = read.rpartition(b"\n")
        self._position += len(whole) + len(end)
        return whole.split(b"\n")
