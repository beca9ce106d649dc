"""No orphans: a process that holds a lifeline ends when the one that made it does, however that one dies.

A named pipe, since mpirun closes every descriptor that its ranks would inherit. The parent keeps the only writing end;
the kernel closes it with the parent, and every reader sees the end of the file.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from chorus.platform import system
from chorus.platform.process import killer
from chorus.platform.storage.paths import make_run_folder, run_places, run_prefix

VARIABLE = "CHORUS_LIFELINE"
EXIT_CODE = 70

_PIPE = "pipe"
_log = logging.getLogger(__name__)


class Lifeline:
    """The parent's side. Children get `environment()` and call `hold()`; do not fork without exec while it is open."""

    def __init__(self) -> None:
        _remove_abandoned()
        self._folder = make_run_folder()
        unfinished = self._folder / "new"
        os.mkfifo(unfinished, 0o600)
        # A writing end opens only while there is a reader, and the pipe may be seen only once it has its writer.
        reader = os.open(unfinished, os.O_RDONLY | os.O_NONBLOCK)
        self._writer: int | None = os.open(unfinished, os.O_WRONLY)
        os.close(reader)
        self.path = self._folder / _PIPE
        unfinished.rename(self.path)

    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.path)}

    def cut(self) -> None:
        """End every process that holds this line, and any that would take it up later."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(writer)


def hold(grace_seconds: float = 0) -> None:
    """The child's side: end this process with the parent. With a grace, ask it to end first (SIGTERM).

    Without a grace, somebody else kills us: that works in a stopped process, and inside calls that keep Python's lock
    (joining a ring does), where no thread of ours could run. On Linux the kernel does, elsewhere a process of ours.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        _log.warning("%s is not set: this process will outlive its parent", VARIABLE)
        return
    try:
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        _log.error("the lifeline %s is gone, so is the process that started this one", path)
        os._exit(EXIT_CODE)
    if not stat.S_ISFIFO(os.fstat(reader).st_mode):
        os.close(reader)
        raise RuntimeError(f"{VARIABLE}={path} is not a named pipe: it must come from Lifeline.environment()")
    os.set_blocking(reader, True)
    if grace_seconds <= 0:
        _be_killed_at_end_of_file(reader)
    threading.Thread(target=_end_with, args=(reader, grace_seconds), name="lifeline", daemon=True).start()


def _be_killed_at_end_of_file(reader: int) -> None:
    if sys.platform == "linux" and system.is_linux():
        fcntl.fcntl(reader, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        _start_killer(reader)


def _start_killer(reader: int) -> None:
    own_pipe, _ = os.pipe()  # the writing end stays open for as long as this process lives
    try:
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(killer.__file__)), str(reader), str(own_pipe)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(reader, own_pipe),
            start_new_session=True,
        )
    except OSError as error:
        _log.warning("this process may outlive its parent: no process to end it: %s", error.strerror)
    finally:
        os.close(own_pipe)


def _end_with(reader: int, grace_seconds: float) -> None:
    while os.read(reader, 1):
        pass
    if grace_seconds > 0:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_seconds)
    os._exit(EXIT_CODE)


def living_folders(more_places: Iterable[Path] = ()) -> list[Path]:
    """The run folders of this user's parents that live now, on this machine; also those in places that are not ours."""
    found = []
    for folder in _run_folders(more_places):
        try:
            if folder.stat().st_uid == os.geteuid() and not _is_abandoned(folder / _PIPE):
                found.append(folder)
        except OSError:
            continue  # just removed by its owner
    return found


def _run_folders(more_places: Iterable[Path] = ()) -> list[Path]:
    places = (*run_places(), *more_places)
    return sorted({folder for place in places for folder in place.glob(f"{run_prefix()}*")})


def _remove_abandoned() -> None:
    """A killed parent cannot delete its pipe, so the next one does: a pipe that nobody writes to is abandoned."""
    for folder in _run_folders():
        try:
            if _is_abandoned(folder / _PIPE):
                shutil.rmtree(folder)
        except OSError:
            continue  # another user's, or just removed by its owner


def _is_abandoned(pipe: Path) -> bool:
    if not stat.S_ISFIFO(pipe.lstat().st_mode):
        return False
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(reader, 1) == b""
    except BlockingIOError:
        return False
    finally:
        os.close(reader)
