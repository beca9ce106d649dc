"""The connections that are open now, by the member at the other end: those of an expelled one are closed."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

log = logging.getLogger("chorus.trust")

LOOK_SECONDS = 0.5
"""How soon an expulsion closes lines: other processes write the list, and nothing tells of it."""


class Lines:
    def __init__(self, expelled: Callable[[], frozenset[str]]) -> None:
        self._expelled = expelled
        self._lock = threading.Lock()
        self._open: dict[object, tuple[str, Callable[[], object]]] = {}
        self._watcher: threading.Thread | None = None

    def add(self, node_id: str, close: Callable[[], object]) -> Callable[[], None]:
        """Close the line when that member is expelled; answers what to call when it has ended by itself."""
        line = object()
        with self._lock:
            self._open[line] = node_id, close
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="expelled", daemon=True)
                self._watcher.start()

        def ended() -> None:
            with self._lock:
                self._open.pop(line, None)

        return ended

    @contextlib.contextmanager
    def held(self, node_id: str, close: Callable[[], object]) -> Iterator[None]:
        ended = self.add(node_id, close)
        try:
            yield
        finally:
            ended()

    def _watch(self) -> None:
        """For as long as there are lines; the next one starts it again."""
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            with self._lock:
                if not self._open:
                    self._watcher = None
                    return
            try:
                self._close_expelled(self._expelled())
            except Exception:
                log.exception("cannot see who has been expelled")

    def _close_expelled(self, expelled: frozenset[str]) -> None:
        with self._lock:
            gone = [line for line, (node_id, _) in self._open.items() if node_id in expelled]
            closing = [self._open.pop(line) for line in gone]
        for node_id, close in closing:
            log.warning("closing a connection of %s, which was expelled", node_id)
            with contextlib.suppress(Exception):
                close()
