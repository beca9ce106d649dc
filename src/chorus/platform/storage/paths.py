"""Where Chorus keeps things on this machine. Nothing is written outside these folders."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from pathlib import Path

from chorus.errors import CannotListen
from chorus.platform import system

STATE_VARIABLE = "CHORUS_STATE"
BROUGHT_UP = ".chorus"
SOCKET_PATH_BYTES = 103
"""The longest name of a Unix socket that every system takes."""
SOCKET_NAME_BYTES = 16


def check_socket_path(address: str) -> None:
    """Refuse unix:PATH where the path is too long, on every system alike; others are no business of ours."""
    path = address.removeprefix("unix:")
    if path != address and (size := len(os.fsencode(path))) > SOCKET_PATH_BYTES:
        raise CannotListen(
            f"the path of the socket {path} has {size} bytes, and not every system takes more than "
            f"{SOCKET_PATH_BYTES}: choose a shorter folder"
        )


def brought_up() -> Path:
    """Has a folder for each cluster that `chorus up` brought up here, and in it one for each of its devices."""
    return Path("~").expanduser() / BROUGHT_UP


def cache_dir() -> Path:
    """Models, rebuilt libraries, profiles: all of it can be deleted and is made again."""
    if chosen := os.environ.get("CHORUS_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "chorus"


def models_dir() -> Path:
    return cache_dir() / "models"


def state_dir() -> Path:
    """What must not be lost: who this node is, whom it trusts."""
    if chosen := os.environ.get(STATE_VARIABLE):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "chorus"


def log_dir() -> Path:
    """Where logs go unless told otherwise: on a Mac where its Console shows them, elsewhere beside the work."""
    return Path("~/Library/Logs/Chorus").expanduser() if system.is_mac() else Path("logs")


def private_folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def make_run_folder() -> Path:
    """A new folder for the pipes and sockets of running processes, which only this user may enter.

    In the state folder: temporary folders are cleared of what is old, and XDG_RUNTIME_DIR goes when its user logs out.
    Where the state folder cannot be used, or a socket there would have too long a name, a temporary one must do.
    """
    reasons = []
    for place in run_places():
        try:
            if place == _own_place():
                _check_owner(private_folder(place))
            return _new_folder(place)
        except OSError as error:
            reasons.append(f"{place}: {error.strerror or error}")
    raise OSError(f"there is no folder for sockets: {'; '.join(reasons)}")


def _new_folder(place: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=run_prefix(), dir=place))
    try:
        if len(os.fsencode(folder)) + 1 + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES:
            raise OSError(0, "its name is too long for sockets in it")
        os.mkfifo(folder / "tried")  # some file systems have no such thing
        (folder / "tried").unlink()
    except OSError:
        folder.rmdir()
        raise
    return folder


def run_places() -> tuple[Path, ...]:
    """Where run folders may be, the best first."""
    return _own_place(), Path(tempfile.gettempdir()), Path("/tmp")


def run_prefix() -> str:
    """Of this machine's folders: a home folder may be shared by several, and pipes mean nothing to the others."""
    return f"chorus-{machine_name()}-"


def machine_name() -> str:
    """Tells this machine's files from those of others with the same home folder."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


def _own_place() -> Path:
    return (state_dir() / "run").absolute()


def _check_owner(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(0, "others may write to it")
