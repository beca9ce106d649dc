"""What a cluster looks like right now, as plain data: for `/cluster/status`, for `chorus status`, for people."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chorus.messages.proto import agent_pb2 as wire
from chorus.platform.storage.files import write_whole

if TYPE_CHECKING:  # every `chorus serve` writes a status, few have a coordinator
    from chorus.cluster.coordinator.process import ConnectedNode, Nodes

log = logging.getLogger("chorus.coordinator")

FILE_NAME = "cluster.json"
WRITE_SECONDS = 1.0
"""How old what front ends read of the nodes may be."""


@dataclass(frozen=True)
class View:
    """What one file tells: how the nodes are, and the plan that one model has on them."""

    file: Path
    plan: dict[str, Any] = field(default_factory=dict)
    notice: str = ""
    """In what the plan is not as it was asked for, where it is not."""
    session: str | None = None
    """Of the model's ranks; None: it is about no model, and every rank is shown as current."""


def snapshot(nodes: Nodes, started_at: float, session: str | None = None) -> dict[str, Any]:
    return {
        "written_at": time.time(),
        "started_at": started_at,
        "node_id": nodes.own_node_id,
        "nodes": [node_status(node, session) for node in nodes.present],
        "problems": {f"{host}:{port}": why for (host, port), why in nodes.problems().items()},
        "links": [link.to_json() for link in nodes.assumed.values()],
    }


def node_status(node: ConnectedNode, session: str | None = None) -> dict[str, Any]:
    state = node.state
    return {
        "node_id": node.node_id,
        "name": node.name,
        "address": f"{node.address[0]}:{node.address[1]}",
        "role": "worker",
        "version": state.version,
        "device": state.device,
        "cores": state.cores,
        "memory_total": state.memory_total,
        "memory_available": state.memory_available,
        "memory_booked": state.memory_booked,
        "memory_unbooked": state.memory_unbooked,
        "disk_free": state.disk_free,
        "log_file": state.log_file,
        "draining": state.draining,
        "round_trip_ms": round(node.round_trip_ms, 2),
        "bandwidth_bytes_per_second": round(node.bandwidth) if node.bandwidth else None,
        "last_heartbeat": node.heard_at,
        "heartbeat_age_seconds": round(time.monotonic() - node.heard, 2),
        "ranks": [rank_status(rank, session) for rank in state.ranks],
    }


def rank_status(rank: wire.RankState, session: str | None = None) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "model": rank.model,
        "current": session is None or rank.session == session,
        "pid": rank.pid,
        "running": rank.running,
        "exit_code": None if rank.running else rank.exit_code,
        "step": rank.step,
        "step_at": rank.step_at or None,
        "memory_bytes": rank.memory_bytes,
        "booked_bytes": rank.booked_bytes,
        "load_progress": round(rank.loaded_bytes / rank.total_bytes, 3) if rank.total_bytes else 0.0,
        "last_words": rank.last_words,
    }


async def keep_written(nodes: Nodes, started_at: float, views: Callable[[], Iterable[View]]) -> None:
    """Write the status for front ends, which know nothing of agents; a file that cannot be written just grows old."""
    told = ""
    while True:
        try:
            for view in views():
                found = snapshot(nodes, started_at, view.session)
                if view.notice:
                    found["problems"]["plan"] = view.notice
                write_whole(view.file, json.dumps({**found, "plan": view.plan}).encode())
            told = ""
        except OSError as error:
            if told != str(error):
                log.warning("cannot write the status of the nodes, it stays as it was: %s", error)
            told = str(error)
        await asyncio.sleep(WRITE_SECONDS)


def read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
