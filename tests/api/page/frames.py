"""The stream of the page, read as a browser does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.api.scripted_engine import DEADLINE


@contextmanager
def watching(url: str, key: str | None = None) -> Iterator[Iterator[dict[str, Any]]]:
    """The pictures, until the server ends the stream."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with (
        httpx.Client(base_url=url, timeout=DEADLINE, headers=headers) as http,
        http.stream("GET", "/live") as answer,
    ):
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: "))


def next_frame(url: str, key: str | None = None) -> dict[str, Any]:
    with watching(url, key) as frames:
        return next(frames)
