"""Clients that go away in the middle, at the moment that a test chooses rather than after a time."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit


@contextlib.contextmanager
def asked(url: str, body: Any, **headers: str) -> Iterator[None]:
    """Posts the body and reads nothing; whoever leaves the block leaves the server, too."""
    place, content = urlsplit(url), json.dumps(body).encode()
    lines = [f"POST {place.path} HTTP/1.1", f"host: {place.netloc}", "content-type: application/json"]
    lines += [f"content-length: {len(content)}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    with socket.create_connection((place.hostname, place.port), 60) as connection:
        connection.sendall("\r\n".join(lines).encode() + content)
        yield
