"""Work like the front end's beside a trial: who has all cores in a trial shares them once clients read."""

from __future__ import annotations

import hashlib
import queue
import threading
from types import TracebackType
from typing import Self

_TOKEN = bytes(512 << 10)
"""Hashing so many bytes takes about as long as the front end does for a token, 0.5 to 0.7 ms, and like it holds up
nobody who waits for Python."""
_END_SECONDS = 5.0


class FrontEndWork:
    """A thread that works for every token that it hears of, as soon as it hears."""

    def __init__(self) -> None:
        self._tokens: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="trial", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tokens.put(0)
        self._thread.join(_END_SECONDS)

    def tell(self, tokens: int) -> None:
        self._tokens.put(tokens)

    def _work(self) -> None:
        while tokens := self._tokens.get():
            for _ in range(tokens):
                hashlib.blake2b(_TOKEN)
