"""`chorus status`: the nodes, what they hold and how they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from chorus.cli.output import fail
from chorus.cli.own_server import base_url, trusted
from chorus.cli.up import on_first_host
from chorus.cluster import status as cluster_status
from chorus.cluster.coordinator.record import Serving, find_serving
from chorus.security.node_folder import state_dir

ASK_SECONDS = 60.0


def status(
    url: Annotated[str | None, typer.Option(help="Ask the server there (the one that runs on this machine).")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Ask the cluster of this file, by SSH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the cluster that is being served: nodes, ranks, memory, steps, heartbeats.

    Example: chorus status
    """
    if config:
        on_first_host(config, ["status", *(["--json"] if as_json else [])], ASK_SECONDS)
        return
    found = gather_status(url)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console()
    console.print(f"{found.get('model') or '-'}  {found.get('state') or '-'}  {found.get('url') or ''}")
    if lost := recovery_text(found.get("recoveries")):
        console.print(lost)
    if found.get("ranks"):
        console.print(rank_table(found["ranks"]))
    if found.get("nodes"):
        console.print(node_table(found["nodes"]))
    for address, problem in (found.get("problems") or {}).items():
        console.print(f"[yellow]{address}[/]: {problem}")


def gather_status(url: str | None) -> dict[str, Any]:
    """The status that the server tells, with what the coordinator of this machine knows besides."""
    serving = None if url else find_serving(state_dir())
    base = base_url(url)
    nodes = cluster_status.read(Path(serving.status_file)) if serving else None
    try:
        engine = _engine(base)
    except httpx.HTTPError as error:
        if nodes is None:
            fail(f"nothing answers at {base} ({error}): start `chorus serve` or `chorus up`, or give --url")
        engine = {"state": "the API does not answer"}
    return {"url": base, "model": _model(serving, engine), **engine, **(nodes or {})}


def _model(serving: Serving | None, engine: dict[str, Any]) -> str | None:
    return serving.model if serving else engine.get("model")


def _engine(base: str) -> dict[str, Any]:
    with httpx.Client(base_url=base, timeout=10, verify=trusted()) as http:
        answer = http.get("/cluster/status")
        if answer.status_code == 404:
            answer = http.get("/health")
    found = answer.json()
    engine = found.get("engine") if isinstance(found.get("engine"), dict) else {}
    return {**engine, **{key: value for key, value in found.items() if key != "engine"}}


def node_table(nodes: list[dict[str, Any]]) -> Table:
    table = Table("node", "address", "version", "device", "memory free", "ranks", "step", "loaded", "link", "heartbeat")
    for node in nodes:
        ranks = [rank for rank in node["ranks"] if rank["running"]]
        table.add_row(
            f"{node['name']}{' (draining)' if node['draining'] else ''}",
            node["address"],
            node["version"],
            node["device"],
            f"{node['memory_available'] / 2**30:.1f} of {node['memory_total'] / 2**30:.1f} GiB",
            ", ".join(str(rank["rank"]) for rank in ranks) or "-",
            ", ".join(str(rank["step"]) for rank in ranks) or "-",
            ", ".join(f"{rank['load_progress']:.0%}" for rank in ranks) or "-",
            link_text(node),
            f"{node['heartbeat_age_seconds']:.1f} s ago",
        )
    return table


def recovery_text(last: dict[str, Any] | None) -> str:
    """What was lost last, and what became of the streams; empty where nothing was."""
    if not last or not last.get("told"):
        return ""
    if not last["count"]:
        return f"started again: {last['told']}"
    computed = last["tokens"] - last["restored_tokens"]
    read = f"{computed} tokens computed again, {last['restored_tokens']} read from disk"
    times = f"recovered {last['count']} times, last in {last['seconds']:.1f} s"
    return f"{times}: {last['told']}; {last['streams']} streams went on, {read}"


def link_text(node: dict[str, Any]) -> str:
    """Round trip and bandwidth between the machine that serves and the node."""
    bandwidth = node.get("bandwidth_bytes_per_second")
    speed = f"{bandwidth / 1e6:,.0f} MB/s" if bandwidth else "not measured yet"
    return f"{node.get('round_trip_ms', 0):.1f} ms, {speed}"


def rank_table(ranks: list[dict[str, Any]]) -> Table:
    table = Table("rank", "host", "device", "layers", "weights", "memory", "step")
    for rank in ranks:
        table.add_row(
            str(rank.get("rank")),
            str(rank.get("host", "-")),
            str(rank.get("device", "-")),
            f"{rank['first_layer']}-{rank['last_layer'] - 1}" if rank.get("last_layer") else "-",
            f"{rank.get('weight_bytes', 0) / 1e6:.0f} MB",
            f"{rank.get('memory_bytes', 0) / 1e6:.0f} MB",
            str(rank.get("step", "-")),
        )
    return table
