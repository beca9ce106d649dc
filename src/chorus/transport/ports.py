"""Ports that are named long before they are used: other ranks must know where a collective will meet."""

from __future__ import annotations

import socket
import threading


class HeldPort:
    """A free port, kept from everybody else until it is let go to be used.

    One that was only looked up is anybody's again at once, and a rank may wait minutes for the last of the others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: socket.socket | None = None

    def number(self) -> int:
        """The same one until it is let go. Nothing answers there meanwhile, as if nobody had it."""
        with self._lock:
            if self._holder is None:
                self._holder = socket.socket()
                self._holder.bind(("", 0))
            return int(self._holder.getsockname()[1])

    def release(self) -> None:
        """To be called right before the port is used."""
        with self._lock:
            if self._holder:
                self._holder.close()
                self._holder = None
