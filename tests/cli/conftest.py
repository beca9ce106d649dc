"""A folder and a state of one's own for every test that types commands, and servers for them to ask."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from chorus.cluster.servers import Server, record
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.storage.paths import state_dir

Answer = tuple[int, Any]
Answers = dict[str, Answer | Callable[[Any], Answer]]
"""By path; one that is called is given the request's body."""


class Scripted(ThreadingHTTPServer):
    """Answers each path as it is told to, and keeps who asked."""

    daemon_threads = True

    allow_reuse_address = True

    def __init__(self, answers: Answers, needed_key: str | None = None, port: int = 0) -> None:
        self.answers = answers
        self.needed_key = needed_key
        self.keys: list[str | None] = []
        self.fail_after: int | None = None
        self.asked: threading.Semaphore | None = None
        """Told of every request."""
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_GET(self) -> None:
        shown = (self.headers.get("authorization") or "").removeprefix("Bearer ") or None
        self.server.keys.append(shown)
        sent = self.rfile.read(int(self.headers.get("content-length") or 0))
        answer = self.server.answers.get(self.path, (404, "<html>not found</html>"))
        status, body = answer(json.loads(sent) if sent else None) if callable(answer) else answer
        if self.server.asked:
            self.server.asked.release()
        if self.server.fail_after is not None and len(self.server.keys) > self.server.fail_after:
            status, body = 500, {"error": {"message": "enough"}}
        if self.server.needed_key and shown != self.server.needed_key:
            status, body = 401, {"error": {"message": "An API key is needed."}}
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where somebody types: an empty folder, no server, no keys."""
    monkeypatch.chdir(tmp_path)
    # Called so short that its sockets lie in it.
    state = Path(tempfile.mkdtemp(prefix="state-", dir="/tmp"))
    monkeypatch.setenv("CHORUS_STATE", str(state))
    # Servers of other tests may be where all users of the machine have theirs.
    monkeypatch.setattr("chorus.platform.process.lifeline.run_places", lambda: (state / "run",))
    monkeypatch.setenv("CHORUS_KEYS_FILE", str(tmp_path / "keys.json"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    yield tmp_path
    shutil.rmtree(state)


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    """Makes HTTP servers that answer as they are told."""
    made: list[Scripted] = []

    def make(answers: Answers, needed_key: str | None = None) -> Scripted:
        server = Scripted(answers, needed_key)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        made.append(server)
        return server

    yield make
    for server in made:
        server.shutdown()
        server.server_close()


@pytest.fixture
def recorded(folder: Path) -> Iterator[Callable[..., Server]]:
    """Leaves word of servers as `chorus serve` does, for as long as the test runs."""
    lines: list[Lifeline] = []

    def make(url: str, **more: Any) -> Server:
        lines.append(Lifeline())
        state = str(Path(more.pop("state", None) or state_dir()).resolve())
        server = Server(str(lines[-1].path.parent), url, more.pop("model", "tiny"), state, **more)
        record(server)
        return server

    yield make
    for line in lines:
        line.cut()
