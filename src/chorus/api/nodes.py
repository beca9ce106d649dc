"""The nodes of a cluster, as its coordinator last wrote of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chorus.config.front_end import ModelSettings

_OLDEST_SECONDS = 5.0
"""How old what is known of the nodes' names may be."""


def names_of_ranks(told: Sequence[str], nodes: Sequence[dict[str, Any]]) -> dict[int, str]:
    """By their numbers. Which node has which rank changes when one is lost, so what the nodes say goes first."""
    at_nodes = {
        rank["rank"]: node["name"]
        for node in nodes
        for rank in node["ranks"]
        if rank["running"] and rank.get("current", True)
    }
    return {**dict(enumerate(told)), **at_nodes}


def read_nodes(status_file: Path | None) -> dict[str, Any]:
    """What the coordinator last wrote of its nodes; a server on one machine has none."""
    nothing: dict[str, Any] = {"plan": None, "nodes": [], "links": [], "problems": {}}
    try:
        found = json.loads(status_file.read_text(encoding="utf-8")) if status_file else {}
    except (OSError, ValueError):
        return nothing
    return {key: found.get(key) or empty for key, empty in nothing.items()}


def of_this_model(told: dict[str, Any]) -> dict[str, Any]:
    """Without the ranks that other models have on the same nodes: a key may be for this one alone."""
    nodes = [{**node, "ranks": [rank for rank in node["ranks"] if rank.get("current", True)]} for node in told["nodes"]]
    return {**told, "nodes": nodes}


class NodeNames:
    """What the nodes of each model's ranks are called. A rank that no node has for now keeps the name of its last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._names: dict[str, dict[int, str]] = {}
        self._read_at: dict[str, float] = {}
        self._reading: set[asyncio.Task[None]] = set()

    def known(self, model_id: str) -> Mapping[int, str]:
        """By the numbers of its ranks, as last read."""
        return self._names.get(model_id, {})

    def look(self, model: ModelSettings) -> None:
        """Anew, where that is due."""
        if self._due(model):
            self._keep(model, read_nodes(model.status_file))

    def look_beside(self, model: ModelSettings) -> None:
        """The same for somebody who would rather have no name than wait until a file is read."""
        if self._due(model):
            task = asyncio.create_task(self._read(model))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)

    def _due(self, model: ModelSettings) -> bool:
        now = self._clock()
        due = now - self._read_at.get(model.id, float("-inf")) > _OLDEST_SECONDS
        if due:
            self._read_at[model.id] = now
        return due

    async def _read(self, model: ModelSettings) -> None:
        self._keep(model, await asyncio.to_thread(read_nodes, model.status_file))

    def _keep(self, model: ModelSettings, told: Mapping[str, Any]) -> None:
        known = {**dict(enumerate(model.rank_names)), **self.known(model.id)}
        self._names[model.id] = {**known, **names_of_ranks((), told["nodes"])}
