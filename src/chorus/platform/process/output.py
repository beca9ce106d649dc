"""What a process writes about itself: a full disk, a gone reader or a lost terminal costs lines, never the process."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
from pathlib import Path
from typing import Any

MAX_BYTES = 16 << 20
KEEP = 3
PATIENCE_SECONDS = 1.0
"""How long a reader that does not read may hold up what else is to be written."""


class Sink:
    """Takes bytes from any thread and raises nothing. What a descriptor refuses is dropped and counted, and the next
    line that it takes says how much that was.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._lost = 0
        self._reason = ""
        self._inside_line = False

    def write(self, data: bytes) -> None:
        written = 0
        with self._lock:
            try:
                descriptor = self._target(len(data))
                if self._lost:
                    self._put(descriptor, self._notice())
                    self._lost = 0
                while written < len(data):
                    written += self._put(descriptor, data[written:])
            except OSError as error:
                self._lost += len(data) - written
                self._reason = (error.strerror or str(error)).lower()
            if written:
                self._inside_line = not data[:written].endswith(b"\n")

    def _target(self, size: int) -> int:
        """Where the next bytes go; raises OSError where they cannot go anywhere."""
        assert self._descriptor is not None
        return self._descriptor

    def _put(self, descriptor: int, data: bytes) -> int:
        return os.write(descriptor, data)

    def _notice(self) -> bytes:
        begin = "\n" if self._inside_line else ""
        return f"{begin}{self._lost} bytes of log were lost: {self._reason}\n".encode()


class LogFile(Sink):
    """Appends to a file; one that was deleted, or could not be opened, is opened again as soon as that works."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._closed = False
        with contextlib.suppress(OSError):  # so that whoever follows the file finds it from the start
            self._descriptor = self._open()

    def write(self, data: bytes) -> None:
        if not self._closed:
            super().write(data)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._let_go()

    def _target(self, size: int) -> int:
        if self._descriptor is not None and not os.fstat(self._descriptor).st_nlink:
            self._let_go()
        if self._descriptor is None:
            self._descriptor = self._open()
        return self._descriptor

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def _let_go(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


class RotatingLog(LogFile):
    """At a limit the file becomes .1, .1 becomes .2, and the oldest goes."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, keep: int = KEEP) -> None:
        self._max = max_bytes
        self._keep = keep
        super().__init__(path)

    def _target(self, size: int) -> int:
        descriptor = super()._target(size)
        held = os.fstat(descriptor).st_size
        if not held or held + size <= self._max:
            return descriptor
        # Where the names cannot be changed, lines are lost: the file must not grow instead.
        self._rotate()
        self._let_go()
        return super()._target(size)

    def _rotate(self) -> None:
        for number in range(self._keep, 0, -1):
            source = self.path if number == 1 else self._numbered(number - 1)
            with contextlib.suppress(FileNotFoundError):
                source.rename(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


class Screen(Sink):
    """A terminal or a pipe, whose reader may have stopped reading: it is waited for once, then not until it reads."""

    def _put(self, descriptor: int, data: bytes) -> int:
        patience = 0 if self._lost else PATIENCE_SECONDS
        if not select.select((), (descriptor,), (), patience)[1]:
            raise TimeoutError(0, "nobody read it")
        # A pipe that is ready takes so much without waiting.
        return os.write(descriptor, data[: select.PIPE_BUF])


class _Stream(io.RawIOBase):
    """Standard output or error, for Python's own printing."""

    def __init__(self, descriptor: int) -> None:
        self._number = descriptor
        self._sink = Sink(descriptor)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: Any) -> int:
        self._sink.write(bytes(data))
        return len(data)


def survive_lost_output(*names: str) -> None:
    """From now on printing to a full disk or into a closed pipe raises nothing, in whatever way it is done."""
    _fill_closed()
    for name in names:
        stream = getattr(sys, name)
        # What somebody has put in its place already is theirs.
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _unfailing(stream, ("stdin", "stdout", "stderr").index(name)))


def _unfailing(stream: io.TextIOWrapper | None, descriptor: int) -> io.TextIOWrapper:
    encoding, errors = (stream.encoding, stream.errors) if stream else ("utf-8", "backslashreplace")
    return io.TextIOWrapper(io.BufferedWriter(_Stream(descriptor)), encoding, errors, line_buffering=True)


def _fill_closed() -> None:
    """A process may be started with its standard descriptors closed: the next file opened would be taken for them."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
