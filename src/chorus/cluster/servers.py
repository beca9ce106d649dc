"""Where a server leaves word for the other commands of its user: a file in its run folder, which goes with it.

Only that user may enter the folder, so the file may hold a key that opens the server's API to these commands.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chorus.platform.process.lifeline import living_folders
from chorus.platform.storage.files import write_whole
from chorus.platform.storage.paths import STATE_VARIABLE, brought_up, state_dir

_FILE = "server.json"
_MAX_BYTES = 64 << 10


@dataclass(frozen=True)
class Server:
    """One `chorus serve` that runs on this machine."""

    folder: str
    url: str
    model: str
    state: str
    """Its state folder: servers of another one belong to another cluster."""
    certificate: str | None = None
    key: str | None = field(default=None, repr=False)
    """Where the API asks for keys, the one for commands of its own user."""
    name: str | None = None
    """Of a server over nodes: what the machine that leads them is called."""
    log_file: str | None = None
    """Of a server over nodes: where what it prints is kept."""

    @property
    def port(self) -> int:
        return urllib.parse.urlsplit(self.url).port or 0

    @property
    def control_file(self) -> Path:
        return Path(self.folder) / f"control-{self.port}"


def record(server: Server) -> None:
    write_whole(Path(server.folder) / _FILE, json.dumps(asdict(server)).encode(), 0o600)


def running_servers() -> list[Server]:
    """Those of this user that live on this machine now, by their port."""
    found = [_read(folder / _FILE) for folder in living_folders(brought_up().glob("*/*/state/run"))]
    return sorted((server for server in found if server), key=lambda server: (server.port, server.url))


def own_servers() -> list[Server]:
    """Those that have the state folder of this process: another one is another cluster's. Where there is none, and
    nobody chose a state folder, those that this user has brought up by SSH on this very machine.
    """
    running, own = running_servers(), str(state_dir().resolve())
    if found := [server for server in running if server.state == own]:
        return found
    if STATE_VARIABLE in os.environ:
        return []
    place = brought_up().resolve()
    return [server for server in running if Path(server.state).is_relative_to(place)]


def _read(file: Path) -> Server | None:
    """What a server of another version wrote may be something else."""
    try:
        with file.open("rb") as stream:
            server = Server(**json.loads(stream.read(_MAX_BYTES)))
        return server if server.port else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None
