"""What the page draws: everything that is known of the models, their ranks and their requests in one moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

import chorus
from chorus.api.journal import Latest
from chorus.api.manage.pull import described
from chorus.api.nodes import names_of_ranks, of_this_model, read_nodes
from chorus.api.page.live import Viewer
from chorus.api.served import EngineView, Served
from chorus.api.service import Service
from chorus.api.views.meta import brief, describe_cache, describe_cluster, look
from chorus.serving.errors import heard
from chorus.serving.models.directory import Model

PATIENCE_SECONDS = 1.5
"""An engine that has not said how it is by then is shown as not answering, and heard when it does."""
SILENT = "unanswered"
LATELY_SECONDS = 5.0
"""What was seen longer ago, before nobody watched for a while, is no news."""
MOST_EVENTS = 40
MOST_REQUESTS = 60
"""Of those that run, and of those that have ended: what a page shows."""


@dataclass(frozen=True)
class Seen:
    """One model, by all names that a key may call it."""

    names: tuple[str, ...]
    row: dict[str, Any]
    own_row: dict[str, Any]
    """What a key for some models hears of it: nothing of the others."""
    cluster: dict[str, Any] | None
    """Who serves it; None where nobody does."""


@dataclass(frozen=True)
class Scene:
    at: float
    models: tuple[Seen, ...]


@dataclass
class Before:
    """How a model was at the last look."""

    at: float = field(default_factory=time.monotonic)
    tokens: int | None = None
    """That it had generated; None where nobody had counted them."""
    ranks: dict[int, tuple[int, str]] = field(default_factory=dict)
    """The process and the state of each, as they were shown."""
    view: EngineView | None = None
    """The last one with ranks: how a group that is lost was made up."""


class Observer:
    """Remembers each model from one look to the next: of that rates are made, and losses are seen."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._asked: dict[str, asyncio.Task[EngineView]] = {}
        self._events = Latest(MOST_EVENTS)
        self._before: dict[str, Before] = {}

    async def take(self) -> Scene:
        models = self._service.directory.models
        events = self._service.event_watch.latest(self._events)
        views, _ = await asyncio.gather(asyncio.gather(*map(self._look, models)), events)
        for gone in self._before.keys() - {model.id for model in models}:
            del self._before[gone]
        return Scene(time.time(), tuple(self._see(model, view) for model, view in zip(models, views, strict=True)))

    def write(self, scene: Scene, viewer: Viewer) -> bytes:
        """As an event of a stream: only what the viewer may hear of."""
        seen = [model for model in scene.models if viewer.may_use(model.names)]
        listing = self._service.listing
        body = {
            "at": round(scene.at, 3),
            "version": chorus.__version__,
            "admin": viewer.may_admin,
            "any_model": self._service.settings.any_model,
            "models": [model.row if viewer.models is None else model.own_row for model in seen],
            "clusters": [model.cluster for model in seen if model.cluster is not None],
            "requests": {
                "running": [each.now() for each in listing.running(viewer)[:MOST_REQUESTS]],
                "recent": listing.recent(viewer)[:MOST_REQUESTS],
            },
            "pulls": [described(row) for row in self._service.directory.pulls if viewer.may_use([row.name])],
            "events": [event.shown() for event in self._events.events] if viewer.may_admin else None,
        }
        return b"data: %b\n\n" % orjson.dumps(body)

    async def _look(self, model: Model[Served]) -> EngineView:
        asked = self._asked.get(model.id)
        if asked is None:
            asked = self._asked[model.id] = asyncio.create_task(look(model))
            asked.add_done_callback(lambda _: self._asked.pop(model.id, None))
        done, _ = await asyncio.wait({asked}, timeout=PATIENCE_SECONDS)
        if not done:
            return EngineView(SILENT, 0.0, f"it has not answered for {PATIENCE_SECONDS:g} s", None)
        return asked.result()

    def _see(self, model: Model[Served], view: EngineView) -> Seen:
        row = {**brief(model, view), "pinned": model.row.pinned}
        own_row = row if heard(model.row, ()) is model.row else {**row, "detail": ""}
        return Seen(tuple(model.settings.names), row, own_row, self._cluster(model, view))

    def _cluster(self, model: Model[Served], view: EngineView) -> dict[str, Any] | None:
        engine = view.description
        if not model.loaded and engine is None:
            self._before.pop(model.id, None)
            return None
        before = self._before.setdefault(model.id, Before())
        if engine is not None and engine.ranks:
            before.view = view
        told, now = of_this_model(read_nodes(model.settings.status_file)), time.monotonic()
        cluster = describe_cluster(view, names_of_ranks(model.settings.rank_names, told["nodes"]), before.view)
        if now - before.at < LATELY_SECONDS:
            _show_losses(cluster["ranks"], before.ranks)
        rates = _rates(model.front, before, now)
        shown = {rank["rank"]: (rank["pid"], rank["state"]) for rank in cluster["ranks"]}
        self._before[model.id] = Before(now, rates["tokens"] if model.front else None, shown, before.view)
        return {
            "model": model.id,
            **cluster,
            "cache": describe_cache(engine) if engine else None,
            "waiting": model.waiting,
            "rates": rates,
            **told,
        }


def _show_losses(ranks: list[dict[str, Any]], before: Mapping[int, tuple[int, str]]) -> None:
    """A rank that was lost and replaced between two looks is shown as lost once: nobody would see it otherwise."""
    for rank in ranks:
        pid, state = before.get(rank["rank"], (0, ""))
        if state == rank["state"] == "ready" and pid != rank["pid"]:
            rank["state"] = "lost"


def _rates(served: Served | None, before: Before, now: float) -> dict[str, Any]:
    if served is None:
        return {"tokens": 0, "tokens_per_second": 0.0, "first_token_seconds": None, "requests": 0}
    tokens, seconds, observed = served.client.counts.generation_tokens, now - before.at, served.observed()
    more = 0 if before.tokens is None else max(tokens - before.tokens, 0)
    return {
        "tokens": tokens,
        "tokens_per_second": round(more / seconds, 2) if seconds > 0 else 0.0,
        "first_token_seconds": observed["first_token_seconds"],
        "requests": observed["requests"],
    }
