"""A front-end process with an engine that does as it is told, and the sockets of those who mean it no good."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.api.conftest import VOCABULARY, ApiProcess, settings_for
from tests.api.scripted_engine import ScriptedEngine
from tests.support.sockets import short
from tests.support.tiny_tokenizer import write_tiny_tokenizer

DEADLINE = 60.0


@dataclass
class FrontEnd:
    api: ApiProcess
    engine: ScriptedEngine

    def answers(self, **options: Any) -> bool:
        """Whether somebody who comes now is served."""
        try:
            return httpx.get(f"{self.api.url}/health", timeout=60, **options).status_code == 200
        except httpx.HTTPError:
            return False

    def connect(self) -> socket.socket:
        return socket.create_connection(self.api.address, timeout=DEADLINE)

    def exchange(self, request: bytes) -> bytes:
        """Everything that is answered until the server closes."""
        with self.connect() as connection:
            connection.sendall(request)
            return read_to_end(connection)

    def memory(self) -> int:
        return int(psutil.Process(self.api.process.pid).memory_info().rss)


@contextmanager
def front_end(folder: Path, open_files: int | None = None, **settings: Any) -> Iterator[FrontEnd]:
    model = folder / "model"
    model.mkdir()
    write_tiny_tokenizer(model, VOCABULARY)
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with ExitStack() as stack:
        engine = ScriptedEngine(short(folder) / "engine.sock", VOCABULARY)
        stack.callback(engine.stop)
        api = ApiProcess(folder, settings_for(engine, model, **settings), open_files)
        stack.callback(api.stop)
        api.wait_until_live()
        yield FrontEnd(api, engine)


def read_to_end(connection: socket.socket) -> bytes:
    """Fails after the deadline of the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def send_until_refused(connection: socket.socket, piece: bytes, most: int) -> int:
    """How many bytes were taken before the other side had enough; at most about so many."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
    except ConnectionError:
        pass
    return sent


def allow_many_files(number: int) -> None:
    """For those that this process itself opens."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
