"""Whether Hugging Face, or the mirror that is set instead, can be reached from here: asked once, for a few seconds."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Mapping

import httpx

from chorus.platform.network import failures

USUAL = "https://huggingface.co"
SECONDS = 4.0
"""For all of it: a resolver that nobody answers would take longer by itself."""


def endpoint(environment: Mapping[str, str]) -> str:
    return environment.get("HF_ENDPOINT", "").strip().rstrip("/") or USUAL


class Asked:
    """One question to an endpoint, on its way; `obstacle` waits for its answer."""

    def __init__(self, url: str, seconds: float = SECONDS) -> None:
        self.url = url
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._ask, name="hub", daemon=True).start()

    def obstacle(self) -> str:
        """Why the endpoint cannot be used; empty where it can."""
        try:
            return self._told.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            return f"no answer within {self._seconds:g} s"

    def _ask(self) -> None:
        try:
            # With the proxy of the environment, as a download would go.
            answer = httpx.head(self.url, timeout=self._seconds, follow_redirects=False)
            answer.close()
            # A proxy or a portal that stands in between says so with a number of its own.
            self._told.put("" if answer.status_code < 400 else f"the answer is {answer.status_code}")
        except Exception as error:  # also what httpx says of a proxy that it cannot use, an ImportError among it
            self._told.put(_reason(error))


def _reason(error: BaseException) -> str:
    while (below := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = below
    told = failures.reason(error) if isinstance(error, OSError) else str(error)
    return re.sub(r"^\[Errno -?\d+\] ", "", told) or type(error).__name__
