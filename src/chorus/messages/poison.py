"""Requests that ended a rank again and again, remembered for a while: clients send the same once more."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from chorus.messages.engine import Request

REMEMBERED_SECONDS = 600.0
MOST = 1024


class Poison:
    """Which requests are refused for now, and why."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[bytes, tuple[float, str]] = {}

    def remember(self, request: Request, reason: str) -> None:
        self._known[_digest(request)] = self._clock() + REMEMBERED_SECONDS, reason
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]

    def reason(self, request: Request) -> str:
        """Why it is refused; empty: it is not."""
        if not self._known:
            return ""
        digest = _digest(request)
        until, reason = self._known.get(digest, (0.0, ""))
        if reason and until < self._clock():
            del self._known[digest]
            return ""
        return reason


def _digest(request: Request) -> bytes:
    """The same for what would be computed in the same way, whoever asks: where drawing begins is left out."""
    asked = (request.prompt, request.max_tokens, request.pooling, request.grammar and request.grammar.source)
    return hashlib.blake2b(repr(asked).encode(), digest_size=16).digest()
