"""Servers of tests and benchmarks keep state where their user's do not: bookings of memory, events, who runs.

What is moved is the usual place, XDG_STATE_HOME, and not CHORUS_STATE: tests that start a process as if it were a
user's pass none of Chorus's settings on, and those that unset them mean the usual place.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from chorus.platform.storage.paths import STATE_VARIABLE


@cache
def keep_apart() -> Path:
    """A new folder below which this process, and all that it starts from now on, keep state; gone when it ends."""
    # Not where temporary files usually are: sockets lie in it, and a Mac's have too long a name for that.
    place = Path(tempfile.mkdtemp(prefix="chorus-tests-", dir="/tmp"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    os.environ.pop(STATE_VARIABLE, None)
    os.environ["XDG_STATE_HOME"] = str(place)
    return place
