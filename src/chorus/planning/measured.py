"""What a cluster's own sums took when it ran last: believed before what is published about its kind of link."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

from chorus.platform.storage.files import write_if_possible
from chorus.platform.storage.paths import cache_dir

FILE_NAME = "sums.json"
KEPT = 64
"""Clusters that are remembered, those that ran last."""


def remember_sum(transport: str, members: Iterable[str], seconds: float) -> None:
    """`members` are the nodes besides this machine, by their ids."""
    key, known = _key(transport, members), _read(_file())
    known.pop(key, None)
    kept = dict([*known.items(), (key, seconds)][-KEPT:])
    write_if_possible(_file(), json.dumps(kept, indent=1).encode(), "the next plan counts with published figures")


def known_sum(transport: str, members: Iterable[str]) -> float | None:
    """Seconds of a small sum over this machine and these nodes; None where they never ran together."""
    return _read(_file()).get(_key(transport, members))


def _key(transport: str, members: Iterable[str]) -> str:
    return " ".join([transport, *sorted(members)])


def _file() -> Path:
    return cache_dir() / FILE_NAME


def _read(file: Path) -> dict[str, float]:
    """A damaged file is as good as none."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        return {str(key): float(value) for key, value in known.items() if 0 < float(value) < math.inf}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
