"""A real terminal for a real command: a pseudo-terminal, and the screen that whoever sits before it would see."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyte

DEADLINE = 120.0
ALT_ENTER = "\x1b\r"
CTRL_C = "\x03"
CTRL_D = "\x04"
DOWN = "\x1b[B"
ENTER = "\r"

_OWN_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from chorus.cli import main; main()"
"""Ctrl-C is for whoever has the terminal as its own."""


class Terminal:
    """`with Terminal(["chat"], folder) as terminal: terminal.type("Hello\\r"); terminal.wait_for("Hi")`"""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        environment: dict[str, str] | None = None,
        columns: int = 80,
        lines: int = 24,
    ) -> None:
        self.screen = _Screen(columns, lines, history=5000, ratio=0.5)
        self.raw = b""
        """All that the command wrote, as it wrote it."""
        self._stream = pyte.Stream(self.screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._changed = threading.Condition()
        self._own, theirs = os.openpty()
        self.screen.answer = lambda text: os.write(self._own, text.encode())
        self._size(columns, lines)
        kept = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWN_TERMINAL, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env={**kept, "TERM": "xterm-256color", **(environment or {})},
            start_new_session=True,
        )
        os.close(theirs)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE)
        self._reading.join(DEADLINE)
        os.close(self._own)

    def type(self, text: str) -> None:
        os.write(self._own, text.encode(errors="surrogateescape"))

    def resize(self, columns: int, lines: int) -> None:
        with self._changed:
            self.screen.resize(lines, columns)
        self._size(columns, lines)
        os.killpg(os.tcgetpgrp(self._own), signal.SIGWINCH)

    def shown(self) -> str:
        """The lines on the screen, without blanks at their ends."""
        with self._changed:
            return "\n".join(line.rstrip() for line in self.screen.display)

    def everything(self) -> str:
        """What has scrolled away, too."""
        with self._changed:
            above = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
            return "\n".join(line.rstrip() for line in [*above, *self.screen.display])

    def wait_for(self, found: str | Callable[[str], bool], where: str = "on the screen") -> str:
        """The screen once it shows a text, or is as somebody asks for."""
        fits = (lambda shown: found in shown) if isinstance(found, str) else found
        return self._wait(self.shown, fits, f"{found} {where}")

    def wait_for_anywhere(self, text: str) -> str:
        return self._wait(self.everything, lambda shown: text in shown, text)

    def _wait(self, look: Callable[[], str], fits: Callable[[str], bool], what: Any) -> str:
        end = time.monotonic() + DEADLINE
        with self._changed:
            while not fits(shown := look()):
                left = end - time.monotonic()
                gone = self.process.poll()
                assert left > 0, f"never: {what}; the screen:\n{shown}"
                assert gone is None or self._reading.is_alive(), f"it ended ({gone}) without {what}:\n{shown}"
                self._changed.wait(min(left, 1.0))
        return shown

    def wait_for_end(self) -> int:
        code = self.process.wait(DEADLINE)
        self._reading.join(DEADLINE)
        return code

    def _size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while True:
                select.select([self._own], [], [])
                data = os.read(self._own, 65536)
                if not data:
                    return
                with self._changed:
                    self.raw += data
                    self._stream.feed(self._decoder.decode(data))
                    self._changed.notify_all()


class _Screen(pyte.HistoryScreen):
    """Answers where its cursor is, as terminals do; forgets no line that scrolls away."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.answer: Callable[[str], object] = lambda text: None
        super().__init__(*arguments, **options)

    def write_process_input(self, data: str) -> None:
        self.answer(data)
