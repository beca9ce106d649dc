"""The tokens that end a turn, as far as a model's settings name them by number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chorus.text.errors import REMEDY, TokenizerError, one_line


def named_stop_tokens(path: Path) -> frozenset[int]:
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        settings = read_settings(path / name)
        nested = settings.get("text_config")
        for part in (settings, nested if isinstance(nested, dict) else {}):
            found.update(token_ids(part.get("eos_token_id")))
    return frozenset(found)


def token_ids(value: object) -> Iterator[int]:
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, int) and not isinstance(entry, bool):
            yield entry


def read_settings(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(f"cannot read {file} ({one_line(error)}); {REMEDY}") from error
    if not isinstance(settings, dict):
        raise TokenizerError(f"{file} does not hold a JSON object; {REMEDY}")
    return settings
