"""One fuzzed request: the bytes to send, in what manner, and whether an answer is owed for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

KEY = "chorus-the-key-that-every-fuzzed-request-of-a-known-client-shows"
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Attempt:
    kind: str
    pieces: tuple[bytes, ...]
    pause: float = 0.0
    """Seconds between one piece and the next."""
    owed: bool = True
    """Whether the server must answer; for half a request, or one that is no HTTP, it may just close."""
    patience: float = 60.0
    """Seconds that the client waits for the end of the answer."""
    leave_after: int | None = None
    """Bytes of the answer after which the client goes away."""


def request(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    key: str | None = KEY,
    close: bool = True,
) -> bytes:
    """A request as a well-behaved client writes it."""
    fields = {"host": HOST, **({"connection": "close"} if close else {})}
    if key is not None:
        fields["authorization"] = f"Bearer {key}"
    if body or method == "POST":
        fields |= {"content-type": "application/json", "content-length": str(len(body))}
    fields |= dict(headers or {})
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1", errors="replace") + b"\r\n\r\n" + body


def save(attempt: Attempt, file: Path) -> None:
    """As text: Latin-1 keeps every byte."""
    written = asdict(attempt) | {"pieces": [piece.decode("latin-1") for piece in attempt.pieces]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def load(file: Path) -> Attempt:
    read = json.loads(file.read_text(encoding="utf-8"))
    attempt = Attempt(**read)
    return replace(attempt, pieces=tuple(piece.encode("latin-1") for piece in read["pieces"]))
