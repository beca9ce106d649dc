"""Whether whoever asks is a browser that wants the page, or a program that wants what the page is made of."""

from __future__ import annotations

from starlette.datastructures import Headers

_FILES = "/static/"


def is_shell(path: str, headers: Headers) -> bool:
    """Whether this is a part of the page, which everybody may see: it holds no data."""
    return path.startswith(_FILES) or (path == "/" and prefers_page(headers.get("accept", "")))


def prefers_page(accept: str) -> bool:
    """Whether whoever sent this would rather have HTML than JSON; programs that take anything would not."""
    wanted = {"text/html": 0.0, "application/json": 0.0}
    for entry in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in entry.split(";"))
        if kind in wanted:
            wanted[kind] = max(wanted[kind], _quality(parameters))
    return wanted["text/html"] > wanted["application/json"]


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
