"""A server on loopback that answers as the Hugging Face hub does, as far as downloads go."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

HELD_SECONDS = 120.0


@dataclass
class Repo:
    files: dict[str, bytes]
    gated: bool = False
    branches: tuple[str, ...] = ("main",)

    @property
    def commit(self) -> str:
        digest = hashlib.sha1()
        for name in sorted(self.files):
            digest.update(name.encode() + self.files[name])
        return digest.hexdigest()


@dataclass
class HubServer:
    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """(method, path, Range) of each request that came in"""
    cut: dict[str, int] = field(default_factory=dict)
    """file name to the number of bytes after which its next download breaks off"""
    refused: set[str] = field(default_factory=set)
    """files whose headers may be read, but that nobody gets"""
    held: dict[str, threading.Event] = field(default_factory=dict)
    """files that nobody gets before their event is set"""
    status: int | None = None
    """answers everything with this, as a hub that is down does"""
    told: bytes | None = None
    """what it says of every model, whatever that is"""

    def __enter__(self) -> HubServer:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def downloaded(self) -> list[str]:
        return [path.rsplit("/", 1)[1] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                hub.requests.append((self.command, path, self.headers.get("Range")))
                if hub.status is not None:
                    self._answer(hub.status, b"")
                elif path.startswith("/api/models/"):
                    self._api(path.removeprefix("/api/models/").split("/"))
                else:
                    self._file(path.lstrip("/").split("/"))

            def _api(self, parts: list[str]) -> None:
                model_id, what = "/".join(parts[:2]), parts[2] if len(parts) > 2 else "revision"
                revision = parts[3] if len(parts) > 3 else "main"
                repo = self._repo(model_id, revision)
                if repo is None:
                    return
                if hub.told is not None:
                    self._answer(200, hub.told)
                    return
                if what == "tree":
                    entries = [
                        {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                        for name, data in repo.files.items()
                    ]
                    self._answer(200, json.dumps(entries).encode())
                    return
                siblings = [{"rfilename": name, "size": len(data)} for name, data in repo.files.items()]
                info = {"id": model_id, "modelId": model_id, "sha": repo.commit, "siblings": siblings}
                self._answer(200, json.dumps(info).encode())

            def _repo(self, model_id: str, revision: str) -> Repo | None:
                repo = hub.repos.get(model_id)
                if repo is None:
                    self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
                elif repo.gated:
                    self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
                elif revision not in (*repo.branches, repo.commit):
                    self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
                else:
                    return repo
                return None

            def _file(self, parts: list[str]) -> None:
                if len(parts) < 5:
                    self._answer(404, b"")  # an address of the hub that is no file
                    return
                model_id, revision, name = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
                repo = self._repo(model_id, revision)
                if repo is None:
                    return
                if name not in repo.files:
                    self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
                    return
                data = repo.files[name]
                headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
                headers["Accept-Ranges"] = "bytes"
                wanted = self.headers.get("Range")
                if self.command == "GET" and name in hub.held:
                    hub.held[name].wait(HELD_SECONDS)
                if wanted is None and name in hub.refused and self.command == "GET":
                    self._answer(410, b"")
                    return
                if wanted is None:
                    self._answer(200, data, headers, hub.cut.pop(name, None) if self.command == "GET" else None)
                    return
                first = int(wanted.removeprefix("bytes=").split("-")[0])
                headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
                self._answer(206, data[first:], headers, hub.cut.pop(name, None))

            def _answer(
                self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None
            ) -> None:
                self.send_response(status)
                for key, value in (headers or {}).items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body if cut is None else body[:cut])
                if cut is not None:
                    self.close_connection = True

        return Handler
