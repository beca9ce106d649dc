"""Where a node keeps what it must not lose: who it is, whom it trusts, which agent runs."""

from __future__ import annotations

import os
import re
import socket
import uuid
from pathlib import Path

STATE_VARIABLE = "CHORUS_STATE"
DOOR_PORT = 50150
"""Where an agent lets others in; its control port is the next one, its ranks' ports follow."""
RANK_PORTS = 14

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class BadName(ValueError):
    """A node's name becomes part of file names and certificates, so it must be plain."""


def state_dir() -> Path:
    if chosen := os.environ.get(STATE_VARIABLE):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "chorus"


def private_folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def write_private(file: Path, content: bytes) -> None:
    """Written aside and renamed, and never readable by others, not even for a moment."""
    private_folder(file.parent)
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    aside.rename(file)


def node_id(state: Path) -> str:
    """Made once per state folder; what ranks are sorted by."""
    file = state / "node_id"
    if not file.is_file():
        write_private(file, uuid.uuid4().hex[:16].encode())
    return file.read_text().strip()


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadName(f"{name!r} cannot name a node: use letters, digits, dot, dash and underscore, up to 63")
    return name


def own_name() -> str:
    """The host's name, made plain."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname()).strip("-._")[:63]
    return plain or "node"
