"""A rank's pulse, told through a small file that its agent reads.

The rank writes in place, without a lock or a system call; whoever reads needs nothing from the rank, so a rank that is
stuck in a collective is seen as what it is: alive, and not moving.
"""

from __future__ import annotations

import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path

_LAYOUT = struct.Struct("<QdQQ")


@dataclass(frozen=True)
class Pulse:
    step: int = 0
    step_at: float = 0.0
    loaded_bytes: int = 0
    total_bytes: int = 0


class Beat:
    """The rank's side."""

    def __init__(self, path: Path | None) -> None:
        self._map: mmap.mmap | None = None
        if path:
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    def finished(self, step: int) -> None:
        if self._map:
            struct.pack_into("<Qd", self._map, 0, step, time.time())

    def loaded(self, done: int, total: int) -> None:
        if self._map:
            struct.pack_into("<QQ", self._map, 16, done, total)


def prepare(path: Path) -> bool:
    """Whether there is a file for it; a rank runs without one where the disk is full."""
    try:
        path.write_bytes(bytes(_LAYOUT.size))
    except OSError:
        return False
    return True


def read(path: Path) -> Pulse:
    try:
        return Pulse(*_LAYOUT.unpack(path.read_bytes()))
    except (OSError, struct.error):
        return Pulse()
