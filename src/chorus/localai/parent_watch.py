"""LocalAI may die without stopping its backends: then this process becomes another's child, and ends by itself."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

VARIABLE = "LOCALAI_BACKEND_PARENT_WATCH"
INTERVAL_VARIABLE = "LOCALAI_BACKEND_PARENT_WATCH_INTERVAL"
DEFAULT_SECONDS = 2.0

_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?|\.\d+)(?P<unit>ms|s|m|h)?")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def watch_seconds(environment: Mapping[str, str]) -> float | None:
    """How often to look; None where the watch is off. It is on unless the variable says no."""
    if environment.get(VARIABLE, "").strip().lower() in ("false", "0", "no", "off"):
        return None
    written = environment.get(INTERVAL_VARIABLE, "").strip()
    match = _DURATION.fullmatch(written)
    seconds = float(match["number"]) * _UNIT_SECONDS[match["unit"] or "s"] if match else 0.0
    if written and seconds <= 0:
        log.warning("%s=%s is no duration like 500ms or 2s: looking every 2 s", INTERVAL_VARIABLE, written)
    return seconds if seconds > 0 else DEFAULT_SECONDS


async def parent_gone(seconds: float, parent: int, parent_now: Callable[[], int] = os.getppid) -> None:
    """Returns once the parent is another one. No system tells this on every platform, so it is looked at."""
    while parent_now() == parent:
        await asyncio.sleep(seconds)
    log.warning("process %d, which started this backend, is gone: ending", parent)
