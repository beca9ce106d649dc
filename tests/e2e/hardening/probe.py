"""Asks a server again and again whether it lives, and remembers what it did longest instead of answering."""

from __future__ import annotations

import threading
from types import TracebackType

import httpx
import psutil

PATIENCE = 4.0
"""A server that works for so long, in seconds of the processor, before it answers was held up by something. How busy
the machine is does not matter."""
DEADLINE = 120.0
"""Whatever else it waits for."""


class Probe:
    """A thread that runs while the block does; `longest` is the most that the server worked before one answer."""

    def __init__(self, url: str, pid: int) -> None:
        self._url = url
        self._server = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.longest = 0.0
        self.answers = 0
        self._failed = ""

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(DEADLINE + 10)
        assert not self._failed, self._failed

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=DEADLINE) as client:
            while True:
                before = self._worked()
                try:
                    client.get("/health/live")
                except httpx.HTTPError as error:
                    self._failed = f"no answer: {error!r}"
                    return
                self.longest = max(self.longest, self._worked() - before)
                self.answers += 1
                if self._stop.wait(0.01):
                    return

    def _worked(self) -> float:
        times = self._server.cpu_times()
        return times.user + times.system
