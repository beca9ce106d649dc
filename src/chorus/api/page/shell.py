"""The files of the page: read once, sent with a policy under which no text can become script."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi.responses import Response

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"
FRAME = "live/frame.html"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
_ONLY_OURS = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'"
)
POLICY = (
    f"{_ONLY_OURS}; frame-src 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
FRAME_POLICY = f"{_ONLY_OURS}; frame-ancestors 'self'; trusted-types 'none'"
"""Of the empty document in which the shared worker is started. A browser counts a worker's address as script, and the
page may make none of text, not even of our own."""


@dataclass(frozen=True)
class File:
    content: bytes
    type: str
    tag: str
    policy: str

    def answer(self, known: str | None) -> Response:
        """`known` are the tags that the browser has it by."""
        headers = {
            "etag": self.tag,
            "cache-control": "no-cache",
            "content-security-policy": self.policy,
            "cross-origin-resource-policy": "same-origin",
            # A browser looks up the names in links before anybody follows them, and a model writes those.
            "x-dns-prefetch-control": "off",
            # Both the page and what others are told stand at the one address.
            "vary": "accept",
        }
        if self.policy is FRAME_POLICY:
            headers["x-frame-options"] = "SAMEORIGIN"
        if known and self.tag in {tag.strip().removeprefix("W/") for tag in known.split(",")}:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.type)


@cache
def files() -> dict[str, File]:
    """By their path below the folder."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and path.suffix in _TYPES:
            content, name = path.read_bytes(), path.relative_to(FOLDER).as_posix()
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            found[name] = File(content, _TYPES[path.suffix], tag, FRAME_POLICY if name == FRAME else POLICY)
    return found
