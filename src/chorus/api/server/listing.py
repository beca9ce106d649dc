"""The requests of this front end that run now, and those that have ended lately. Of none its text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from chorus.api.server.gate import Record
from chorus.api.server.lifetime import Cause, Lifetime
from chorus.config.front_end import ModelSettings
from chorus.serving.engine_link.standing import Pace, Standing

RECENT_KEPT = 200
_WAITING = "waiting"
"""For its model, which is not loaded."""
_BROKEN = "error"


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """A request without its text. Figures that nobody knows so far are null."""

    id: str
    model: str
    endpoint: str
    key: str | None
    state: str
    """How far it is, or how it ended."""
    started_at: float
    age_seconds: float
    """How long it has run, or ran."""
    prompt_tokens: int | None
    cached_tokens: int | None
    generated_tokens: int
    tokens_per_second: float | None
    ttft_seconds: float | None
    resumed: int


class Asker(Protocol):
    """Whoever wants to see requests, and what it may see."""

    @property
    def owner(self) -> str: ...
    @property
    def may_admin(self) -> bool: ...
    def may_use(self, names: Iterable[str]) -> bool: ...


@dataclass(frozen=True, slots=True)
class Audience:
    """Who may see a request."""

    owner: str
    model: ModelSettings

    def has(self, asker: Asker) -> bool:
        """Whoever sent it, and who may do what concerns everybody, as far as that goes for its model."""
        return asker.owner == self.owner or (asker.may_admin and asker.may_use(self.model.names))


class Listed:
    """One request. Its lifetime and its standing are told when there are any."""

    def __init__(self, record: Record, endpoint: str, model: ModelSettings) -> None:
        self.id = record.request_id
        self.lifetime: Lifetime | None = None
        self.standing: Callable[[], Standing] | None = None
        self._record = record
        self._endpoint = endpoint
        self._model = model.id
        self.seen_by = Audience(record.owner, model)
        self._started_at = time.time()
        self._pace = Pace()

    def cancel(self, record: Record) -> bool:
        """False where it has ended, or is about to."""
        own = record.owner and record.owner == self.seen_by.owner
        who = "its owner" if own else "an administrator of this server"
        return self.lifetime is not None and self.lifetime.end(Cause.CANCELLED, who)

    def now(self) -> RequestEntry:
        standing = self.standing() if self.standing else None
        pace = self._pace.look(time.monotonic(), standing) if standing else None
        return self._figures(standing, standing.stage.value if standing else _WAITING, pace)

    def ended(self) -> RequestEntry:
        told = self._record.log_fields
        standing = self.standing() if self.standing else None
        return self._figures(standing, told.get("finish", _BROKEN), told.get("tokens_per_second"))

    def _figures(self, standing: Standing | None, state: str, pace: float | None) -> RequestEntry:
        told = self._record.log_fields
        counted = standing or Standing()
        first = told.get("ttft")
        return RequestEntry(
            self.id,
            self._model,
            self._endpoint,
            self._record.owner or None,
            state,
            round(self._started_at, 3),
            round(self._record.elapsed(), 3),
            told.get("prompt_tokens"),
            told.get("cached_tokens", counted.cached_tokens),
            told.get("generated_tokens", counted.generated_tokens),
            pace,
            None if first is None else round(first, 4),
            counted.resumed,
        )


class Listing:
    """Lists answers of models: what runs, the oldest first, and the last that have ended, the latest first."""

    def __init__(self) -> None:
        self._running: dict[Listed, None] = {}
        self._recent: deque[tuple[Audience, RequestEntry]] = deque(maxlen=RECENT_KEPT)

    @contextmanager
    def listed(self, request: Listed) -> Iterator[Listed]:
        self._running[request] = None
        try:
            yield request
        finally:
            del self._running[request]
            self._recent.appendleft((request.seen_by, request.ended()))

    def running(self, asker: Asker) -> list[Listed]:
        """Those that whoever asks may see."""
        return [request for request in self._running if request.seen_by.has(asker)]

    def recent(self, asker: Asker) -> list[RequestEntry]:
        return [figures for seen_by, figures in self._recent if seen_by.has(asker)]
