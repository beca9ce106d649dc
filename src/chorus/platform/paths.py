"""Where Chorus keeps things on this machine. Nothing is written outside these folders."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Models, rebuilt libraries, profiles: all of it can be deleted and is made again."""
    if chosen := os.environ.get("CHORUS_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "chorus"


def models_dir() -> Path:
    return cache_dir() / "models"
