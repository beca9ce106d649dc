"""The port that agents listen on unless told otherwise: one test at a time may have it."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chorus.security.node_folder import DOOR_PORT
from tests.support.ports import is_free


@contextlib.contextmanager
def usual_door() -> Iterator[None]:
    """Ours while this lasts; where somebody else has it, the test is skipped."""
    with (Path(tempfile.gettempdir()) / "chorus-test-door.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_free(DOOR_PORT):
            pytest.skip(f"port {DOOR_PORT} is taken on this machine")
        yield
