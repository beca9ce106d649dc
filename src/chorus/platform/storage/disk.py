"""How bytes get to a disk for good, past the page cache, or nowhere near a disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
from pathlib import Path

from chorus.platform import system

# As <fcntl.h> of macOS has them; Python does not name both in every version.
_F_NOCACHE = 48
_F_FULLFSYNC = 51


def sync(descriptor: int) -> None:
    """Return when not even a power cut takes back what was written: on a Mac fsync alone is not enough for that."""
    if system.is_mac():
        with contextlib.suppress(OSError):  # a file system that has no such thing: network shares
            fcntl.fcntl(descriptor, _F_FULLFSYNC)
            return
    os.fsync(descriptor)


def open_past_cache(path: Path) -> int:
    """A descriptor that writes past the page cache; -1 where the system or the file system has no such thing."""
    if system.is_mac():
        descriptor = os.open(path, os.O_WRONLY)
        try:
            fcntl.fcntl(descriptor, _F_NOCACHE, 1)
        except OSError:
            os.close(descriptor)
            return -1
        return descriptor
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.open(path, os.O_WRONLY | os.O_DIRECT)
    return -1


def nameless_file(size: int) -> int:
    """A file without a name, to be mapped by two processes: in memory where the system has a way to do that."""
    if sys.platform == "linux" and system.is_linux():
        file = os.memfd_create("chorus")
    else:
        with tempfile.TemporaryFile() as made:
            file = os.dup(made.fileno())
    os.truncate(file, size)
    return file
