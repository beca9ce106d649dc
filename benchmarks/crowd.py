"""`python -m benchmarks.crowd PORT NUMBER`: strangers that say nothing, say little at a time or leave, and come back.

They come from several addresses of loopback, where this machine has more than one.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import resource
import selectors
import socket
import sys
import time

from benchmarks.servers import Started, peer_module_environment, wait_for_line

EVERYBODY_CAME = "everybody came"
BACK_AFTER_SECONDS = 5.0
DRIP_SECONDS = 1.0
ADDRESSES = 16
HEAD = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-drip: "
# Linux: the port is chosen when it connects, which is quicker than when it binds.
_BIND_ADDRESS_ONLY = 24


class Crowd(Started):
    """Leaving the block ends them all."""

    def __init__(self, port: int, number: int) -> None:
        command = [sys.executable, "-m", "benchmarks.crowd", str(port), str(number)]
        super().__init__("strangers", command, peer_module_environment())

    def _wait_until_ready(self) -> None:
        wait_for_line(self, EVERYBODY_CAME)


class Strangers:
    """Plain sockets in one loop: they are to cost the server something, not the machine that it shares with them."""

    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._awaited = set(range(number))
        self._open: dict[int, socket.socket] = {}
        self._sent: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._turns = itertools.count()
        self._turn: dict[int, int] = {}
        """Of each the latest: one that left has nothing to say any more on the connection that it had."""
        self._due: list[tuple[float, int, int]] = []
        for stranger in range(number):
            self._later(stranger, 0)

    def come_again_and_again(self) -> None:
        while True:
            while self._due and self._due[0][0] <= time.monotonic():
                _, turn, stranger = heapq.heappop(self._due)
                if self._turn[stranger] == turn:
                    self._act(stranger)
            for key, _ in self._selector.select(self._due[0][0] - time.monotonic() if self._due else None):
                self._leave(key.data)

    def _act(self, stranger: int) -> None:
        try:
            if stranger not in self._open:
                self._come(stranger)
            elif stranger % 3 == 1:
                self._drip(stranger)
        except OSError:
            self._leave(stranger)

    def _come(self, stranger: int) -> None:
        connection = self._open[stranger] = socket.socket()
        if sys.platform == "linux":
            connection.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_ONLY, 1)
            connection.bind((f"127.0.0.{2 + stranger % ADDRESSES}", 0))
        connection.connect(("127.0.0.1", self._port))
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, stranger)
        self._sent[stranger] = 0
        if self._awaited:
            self._awaited.discard(stranger)
            if not self._awaited:
                print(EVERYBODY_CAME, flush=True)
        if stranger % 3 == 1:
            self._drip(stranger)
        elif stranger % 3 == 2:
            self._leave(stranger)

    def _drip(self, stranger: int) -> None:
        sent = self._sent[stranger]
        self._open[stranger].send(HEAD[sent : sent + 1] or b"y")
        self._sent[stranger] = sent + 1
        self._later(stranger, DRIP_SECONDS)

    def _leave(self, stranger: int) -> None:
        """Of its own will, or because the other side has had enough of it."""
        if connection := self._open.pop(stranger, None):
            with contextlib.suppress(KeyError):
                self._selector.unregister(connection)
            connection.close()
            self._later(stranger, BACK_AFTER_SECONDS * (0.5 + random.random()))

    def _later(self, stranger: int, seconds: float) -> None:
        self._turn[stranger] = next(self._turns)
        heapq.heappush(self._due, (time.monotonic() + seconds, self._turn[stranger], stranger))


def main() -> int:
    port, number = map(int, sys.argv[1:])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.suppress(KeyboardInterrupt):
        Strangers(port, number).come_again_and_again()
    return 0


if __name__ == "__main__":
    sys.exit(main())
