"""What a node keeps in its state folder, and under which names."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from chorus.errors import ChorusError
from chorus.platform.storage.files import write_whole
from chorus.platform.storage.paths import private_folder, state_dir

DOOR_PORT = 50150
"""Where an agent lets others in; its control port is the next one, its ranks' ports follow."""
RANK_PORTS = 14

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class BadName(ChorusError, ValueError):
    """A node's name becomes part of file names and certificates, so it must be plain."""


def authority_file() -> Path:
    """What clients of an API with a certificate of the cluster's own are to trust."""
    return state_dir() / "authority" / "ca.pem"


def write_private(file: Path, content: bytes) -> None:
    """Never readable by others, not even for a moment."""
    private_folder(file.parent)
    write_whole(file, content, 0o600, lasting=True)


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadName(f"{name!r} cannot name a node: use letters, digits, dot, dash and underscore, up to 63")
    return name


def own_name() -> str:
    """The host's name, made plain."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname()).strip("-._")[:63]
    return plain or "node"
