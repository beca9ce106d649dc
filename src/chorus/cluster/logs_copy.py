"""Everything this process and its children print, also in a log."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from chorus.platform.process.output import RotatingLog, Screen

_BLOCK = 64 << 10
_REST_SECONDS = 1.0
"""How long what was printed last may take to get to the log; a child that lives on keeps the pipe open."""


@contextlib.contextmanager
def copied_output(log: RotatingLog) -> Iterator[None]:
    """A thread passes on what is printed, to where it went before and to the log.

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
