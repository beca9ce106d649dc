"""Everything this process and its children print, also in a file that is rotated."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from chorus.cluster.logs import RotatingLog

_BLOCK = 64 << 10


def copy_output(path: Path) -> None:
    """From now on. A thread passes things on, to where they went before and to the file."""
    log = RotatingLog(path)
    screen = os.dup(1)
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    os.close(writer)

    def copy() -> None:
        while data := os.read(reader, _BLOCK):
            os.write(screen, data)
            log.write(data)

    threading.Thread(target=copy, name="output", daemon=True).start()
