"""A reverse proxy as people put one before a server: what is below its path goes on without that part."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

PATIENCE_SECONDS = 120.0
PIECE_BYTES = 64 * 1024
_OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding"}


@dataclass
class Proxy:
    url: str
    passed: list[str] = field(default_factory=list)
    """What was asked below the path, without it."""
    strayed: list[str] = field(default_factory=list)
    """What was asked elsewhere; nobody answers there."""


@contextmanager
def proxy_before(url: str, path: str) -> Iterator[Proxy]:
    """`path` begins and ends with a slash."""
    behind = urlsplit(url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.close_connection = True
            if not self.path.startswith(path):
                made.strayed.append(self.path)
                self.send_error(404)
                return
            inner = self.path.removeprefix(path.rstrip("/"))
            made.passed.append(inner)
            upstream = http.client.HTTPConnection(behind.hostname or "", behind.port, timeout=PATIENCE_SECONDS)
            try:
                self._pass_on(upstream, inner)
            except OSError:
                pass  # whoever asked has left, and whoever answered is told so by the end of the connection
            finally:
                upstream.close()

        do_POST = do_GET

        def _pass_on(self, upstream: http.client.HTTPConnection, inner: str) -> None:
            length = int(self.headers.get("content-length", 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_HOP}
            upstream.request(self.command, inner, self.rfile.read(length) if length else None, headers)
            answer = upstream.getresponse()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_ONE_HOP:
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            while piece := answer.read1(PIECE_BYTES):
                self.wfile.write(piece)
                self.wfile.flush()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made = Proxy(f"http://127.0.0.1:{server.server_port}{path.rstrip('/')}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        # Streams that are still open end with the server behind; nobody waits for them here.
        server.block_on_close = False
        server.server_close()
        thread.join(10)
