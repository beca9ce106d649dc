"""Environment variables with our prefix: which there are, and which of those given mean nothing.

Nothing here reads the tree of settings before a variable is found that only the tree can explain: every command asks.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

PREFIX = "CHORUS_"
NESTED = "__"

BESIDE_SETTINGS = frozenset(
    {
        "CHORUS_API_KEY",
        "CHORUS_BLAS",
        "CHORUS_CACHE",
        "CHORUS_CONFIG",
        "CHORUS_KEYS_FILE",
        "CHORUS_PIPELINE_SPLIT",
        "CHORUS_STATE",
        "CHORUS_TOKEN",
    }
)
"""Variables that people may set and that are no keys of the tree."""
BETWEEN_PROCESSES = frozenset(
    {
        "CHORUS_BEAT",
        "CHORUS_BOOKED_BYTES",
        "CHORUS_FAULTS",
        "CHORUS_LAST_LOSS",
        "CHORUS_LIFELINE",
        "CHORUS_TIMING",
    }
)
"""What our processes tell those that they start."""


def key_of(name: str) -> str | None:
    """The setting that a variable would be, whether or not there is one; None for those that are no settings."""
    if not name.startswith(PREFIX) or name in BESIDE_SETTINGS | BETWEEN_PROCESSES:
        return None
    return name.removeprefix(PREFIX).lower().replace(NESTED, ".")


def name_of(key: str) -> str:
    return PREFIX + key.replace(".", NESTED).upper()


def strays(variables: Mapping[str, str], source: str) -> list[str]:
    """A warning for each variable with our prefix that is nothing of ours, with the nearest that is."""
    asked = {name: key for name, text in variables.items() if text.strip() and (key := key_of(name))}
    if not asked:
        return []
    from chorus.config.settings import known_keys  # the whole tree, which most commands need not wait for

    known = {name_of(key) for key in known_keys()}
    found = sorted(name for name, key in asked.items() if name_of(key) not in known)
    return [f"{source}: {name} has no effect: there is no such setting{_nearest(name, known)}" for name in found]


def _nearest(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known | BESIDE_SETTINGS), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""
