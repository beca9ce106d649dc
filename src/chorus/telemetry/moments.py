"""The moments that people name: 2h, yesterday, a date, seconds since the epoch."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from chorus.errors import ChorusError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_AGO = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])")
_EPOCH = re.compile(r"\d{1,11}(?:\.\d{1,9})?")


class NoMoment(ChorusError, ValueError):
    """What was given names no moment: says which words do."""


def parse_moment(text: str, now: float) -> float:
    """Seconds since the epoch; times without a zone are of this machine's."""
    text = text.strip()
    if found := _AGO.fullmatch(text):
        return max(0.0, now - float(found[1]) * _UNITS[found[2]])
    if _EPOCH.fullmatch(text):
        return float(text)
    today = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    days = {"today": today, "yesterday": today - timedelta(days=1)}
    try:
        return max(0.0, (days.get(text) or datetime.fromisoformat(text)).timestamp())
    except (ValueError, OverflowError, OSError):
        raise NoMoment(
            f"{text[:40]!r} is no time: give 90s, 30m, 2h or 7d (ago), today, yesterday, 2026-01-31, "
            "2026-01-31T22:00 or seconds since 1970"
        ) from None
