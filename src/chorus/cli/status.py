"""`chorus status`: the nodes, what they hold and how they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from chorus.cli.model_table import show as show_models
from chorus.cli.output import fail
from chorus.cli.own_server import (
    KeyOption,
    PortOption,
    Target,
    UrlOption,
    answered,
    find_target,
    request,
    unanswered,
)
from chorus.cluster import status as cluster_status

ANSWER_SECONDS = 10.0


def status(
    url: UrlOption = None,
    port: PortOption = None,
    api_key: KeyOption = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Ask the cluster of this file, by SSH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the cluster that is being served: models, nodes, ranks, memory, steps, heartbeats.

    Example: chorus status

    Example: chorus status -c chorus.yaml
    """
    if config:
        from chorus.cli.up import look_at_hosts  # SSH and what it needs take a while to import

        found = look_at_hosts(config)
    else:
        found = gather_status(find_target(url, port, api_key))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        show(found, Console())
    if "state" not in found:  # the hosts of a file were asked, and none of them serves
        raise typer.Exit(1)


def show(found: dict[str, Any], console: Console) -> None:
    if found.get("url"):
        console.print(f"{found.get('model') or '-'}  {found.get('state') or '-'}  {found['url']}")
    if len(found.get("models") or ()) > 1:
        show_models(found["models"], console)
    if lost := recovery_text(found.get("recoveries")):
        console.print(lost)
    if found.get("ranks"):
        console.print(rank_table(found["ranks"]))
    if found.get("nodes"):
        console.print(node_table(found["nodes"]))
    if found.get("hosts"):
        console.print(host_table(found["hosts"]))
    for address, problem in (found.get("problems") or {}).items():
        console.print(f"[yellow]{escape(address)}[/]: {escape(problem)}")


def gather_status(target: Target) -> dict[str, Any]:
    """The status that the server tells; where its API does not answer, what its coordinator knows of the nodes."""
    try:
        answer = request(target, "GET", "/cluster/status", seconds=ANSWER_SECONDS)
    except httpx.HTTPError as error:
        server = target.server
        nodes = cluster_status.read(Path(server.folder) / cluster_status.FILE_NAME) if server else None
        if server is None or not nodes or not nodes.get("nodes"):
            fail(unanswered(target, error))
        return {"url": target.url, "model": server.model, "state": "the API does not answer", **nodes}
    return {"url": str(answer.url).removesuffix("/cluster/status"), **answered(target, answer, "state")}


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


def host_table(hosts: list[dict[str, Any]]) -> Table:
    table = Table("device", "host", "by", "runs", "what is wrong")
    for host in hosts:
        runs = ", ".join(f"{name} ({pid})" for name, pid in host["running"].items())
        wrong = escape(host["problem"]) or "[green]nothing[/]"
        table.add_row(escape(host["device_id"]), escape(host["host"]), host["by"], runs or "-", wrong)
    return table


def rank_table(ranks: list[dict[str, Any]]) -> Table:
    table = Table("rank", "node", "device", "layers", "weights", "memory", "step")
    for rank in ranks:
        table.add_row(
            str(rank.get("rank")),
            escape(str(rank.get("node", "-"))),
            str(rank.get("device", "-")),
            str(rank.get("layers") or "-"),
            f"{rank.get('weight_bytes', 0) / 1e6:.0f} MB",
            f"{rank.get('memory_bytes', 0) / 1e6:.0f} MB",
            str(rank.get("step", "-")),
        )
    return table
