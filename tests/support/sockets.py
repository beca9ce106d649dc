"""Unix sockets in tests: a Mac's temporary folders have longer names than a socket's path may have."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

LONGEST = 80
"""Leaves room for the names of sockets."""


@cache
def short(folder: Path) -> Path:
    """The same folder by a name that is short enough, always the same one."""
    if len(os.fsencode(folder)) <= LONGEST:
        return folder
    place = Path(tempfile.mkdtemp(prefix="chorus-", dir="/tmp"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    (place / "t").symlink_to(folder)
    return place / "t"
