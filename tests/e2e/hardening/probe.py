"""Asks a server again and again whether it lives, and remembers the longest time without an answer."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import httpx

PATIENCE = 4.0
"""No answer for so long means that something held up everybody; a busy machine alone takes a fraction of it."""


class Probe:
    """A thread that runs while the block does; `longest` is the longest gap between two answers, the last one too."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.longest = 0.0
        self.answers = 0

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(120)

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=120) as client:
            while True:
                asked = time.monotonic()
                client.get("/health/live")
                self.longest = max(self.longest, time.monotonic() - asked)
                self.answers += 1
                if self._stop.wait(0.01):
                    return
