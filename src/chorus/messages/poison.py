"""Requests that were proved to end ranks, remembered for a while: clients send the same once more."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace

from chorus.messages.engine import Request

REMEMBERED_SECONDS = 600.0
MOST_REMEMBERED = 1024


class Proved:
    """Which requests are refused for now, and why."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reasons: dict[bytes, tuple[float, str]] = {}

    def remember(self, request: Request, reason: str) -> None:
        self._reasons[fingerprint(request)] = self._clock() + REMEMBERED_SECONDS, reason
        if len(self._reasons) > MOST_REMEMBERED:
            del self._reasons[next(iter(self._reasons))]

    def reason(self, request: Request) -> str:
        """Why it is refused; empty: it is not."""
        if not self._reasons:
            return ""
        name = fingerprint(request)
        until, reason = self._reasons.get(name, (0.0, ""))
        if reason and until < self._clock():
            del self._reasons[name]
            return ""
        return reason


def fingerprint(request: Request) -> bytes:
    """The same for whoever asks the same again; a seed is drawn anew where the client gave none."""
    sampling = replace(request.sampling, seed=0, logit_bias={})
    bias = sorted(request.sampling.logit_bias.items())
    asked = (request.prompt, sampling, bias, request.grammar, request.pooling)
    return hashlib.blake2b(repr(asked).encode(), digest_size=16).digest()
