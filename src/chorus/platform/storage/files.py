"""Small files that are there whole, or as they were before: also when the disk is full or the machine stops."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from pathlib import Path

from chorus.platform.storage import disk

log = logging.getLogger("chorus.files")

Version = tuple[int, int, int]


def write_whole(file: Path, content: bytes, mode: int = 0o666, lasting: bool = False) -> None:
    """Written aside and renamed. `lasting`: once this returns, not even a power cut takes it back."""
    file.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(file)
    aside = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as stream:
            stream.write(content)
            if lasting:
                stream.flush()
                disk.sync(stream.fileno())
        aside.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def write_if_possible(file: Path, content: bytes, otherwise: str) -> bool:
    """Where the file cannot be written, the old one stays and a warning says what follows from that."""
    try:
        write_whole(file, content)
    except OSError as error:
        log.warning("cannot write %s: %s; %s", file, error.strerror or error, otherwise)
        return False
    return True


def version(file: Path) -> Version:
    """Another one whenever the file was written or replaced: until then, what was read from it holds."""
    stat = file.stat()
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _remove_leftovers(file: Path) -> None:
    """A writer that was killed leaves its file aside; its process number says whether it is still at it."""
    for left in file.parent.glob(f".{file.name}.*"):
        writer = left.name.removeprefix(f".{file.name}.").partition(".")[0]
        if writer.isdigit() and not _exists(int(writer)):
            with contextlib.suppress(OSError):
                left.unlink()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def read_told(place: str) -> bytes:
    """What a process was told when it was started: in a file, or for `-` in the first line of its standard input.

    A line and not all there is: mpirun passes on what it is told, but never that it was the end.
    """
    return sys.stdin.buffer.readline() if place == "-" else Path(place).read_bytes()
