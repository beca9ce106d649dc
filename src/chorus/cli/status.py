"""`chorus status`: the nodes, what they hold and how they are."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from chorus.cli.live import Poller, Seen, look, watch, with_trouble
from chorus.cli.model_table import model_rows, rendered
from chorus.cli.output import fail
from chorus.cli.own_server import (
    Following,
    KeyOption,
    PortOption,
    ServerFailed,
    Target,
    UrlOption,
    answered,
    find_target,
    request,
    unanswered,
)
from chorus.cluster import status as cluster_status
from chorus.platform.terminal import harmless
from chorus.transport import catalog

ANSWER_SECONDS = 10.0
WATCH_SECONDS = 2.0
STANDS_OUT = 1.25
"""A rank that computes so many times as long as the next one is whom the others wait for."""
ENOUGH_SECONDS = 1.0
"""Of work, before anything is said about who is slow."""


def status(
    seconds: Annotated[float | None, typer.Argument(min=0.1, max=3600, help="With --watch: how often (2).")] = None,
    keep_watching: Annotated[
        bool, typer.Option("--watch", help="Show it anew until q; without a terminal a line each time.")
    ] = False,
    url: UrlOption = None,
    port: PortOption = None,
    api_key: KeyOption = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Ask the cluster of this file, by SSH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the cluster that is being served: models, nodes, ranks, memory, steps, heartbeats.

    Example: chorus status

    Example: chorus status --watch 5

    Example: chorus status -c chorus.yaml
    """
    if seconds is not None and not keep_watching:
        fail(f"{seconds:g} seconds go with --watch: chorus status --watch {seconds:g}")
    if keep_watching and config:
        fail("--watch asks a server: give --url or --port in place of -c")
    if keep_watching:
        server = Following(url, port, api_key)
        watch_status(lambda: server.ask(gather_status), seconds or WATCH_SECONDS, as_json)
        return
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


def watch_status(ask: Callable[[], dict[str, Any]], every: float, as_json: bool) -> None:
    """Until somebody has seen enough. A server that goes away is waited for."""
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        with contextlib.suppress(KeyboardInterrupt):
            for seen in looks(ask, every):
                lines = [json.dumps(told(seen))] if as_json else plain_lines(seen)
                typer.echo("\n".join(lines))
        return

    def draw(seen: Seen[dict[str, Any]]) -> RenderableType:
        when = Text(f"every {every:g} s, q leaves", "dim")
        shown = Group(*parts(seen.found), when) if seen.found else when
        return with_trouble(shown, seen.trouble(time.monotonic()))

    watch(Console(highlight=False), Poller(ask, every), draw)


def looks(ask: Callable[[], Any], every: float) -> Iterator[Seen[Any]]:
    """One look after the other, for as long as somebody takes them."""
    seen: Seen[Any] = Seen(when=time.monotonic())
    while True:
        seen = look(ask, seen)
        yield seen
        time.sleep(every)


def told(seen: Seen[dict[str, Any]]) -> dict[str, Any]:
    """A look as data: what there is, or why nothing is known."""
    return {"time": round(time.time(), 3), **({"problem": seen.problem} if seen.problem else seen.found or {})}


def plain_lines(seen: Seen[dict[str, Any]]) -> list[str]:
    """A line for each model, or the reason why there is none."""
    clock = time.strftime("%H:%M:%S")
    if seen.problem or seen.found is None:
        return [f"{clock}  {seen.problem}"]
    steps = ", ".join(
        f"rank {rank.get('rank')} step {rank.get('step', '-')}{f' ({trouble})' if (trouble := unready(rank)) else ''}"
        for rank in seen.found.get("ranks") or ()
    )
    lines = []
    for number, row in enumerate(model_rows(seen.found)):
        streams = f"{row.get('running') or 0} running, {row.get('waiting') or 0} waiting"
        lines.append(f"{clock}  {row.get('id') or '-'}  {row.get('state') or '-'}  {streams}")
        lines[-1] += f"  {steps}" if steps and not number else ""
    return [harmless(line) for line in lines]


def show(found: dict[str, Any], console: Console) -> None:
    for part in parts(found):
        console.print(part, soft_wrap=isinstance(part, Text))


def parts(found: dict[str, Any]) -> Iterator[RenderableType]:
    """All that is known, one below the other."""
    if found.get("url"):
        yield _text(f"{found.get('model') or '-'}  {found.get('state') or '-'}  {found['url']}")
    if len(found.get("models") or ()) > 1:
        yield from rendered(found["models"])
    if lost := recovery_text(found.get("recoveries")):
        yield _text(lost)
    if found.get("ranks"):
        yield rank_table(found["ranks"])
    if slowest := slowest_text(found):
        yield _text(slowest)
    if found.get("nodes"):
        yield node_table(found["nodes"])
    if found.get("hosts"):
        yield host_table(found["hosts"])
    for address, problem in (found.get("problems") or {}).items():
        yield Text.assemble((harmless(address), "yellow"), harmless(f": {problem}"))


def _text(value: object) -> Text:
    """As it is: names and messages come from other machines."""
    return Text(harmless(str(value)))


def gather_status(target: Target) -> dict[str, Any]:
    """The status that the server tells; where its API does not answer, what its coordinator knows of the nodes."""
    try:
        answer = request(target, "GET", "/cluster/status", seconds=ANSWER_SECONDS)
    except httpx.HTTPError as error:
        server = target.server
        nodes = cluster_status.read(Path(server.folder) / cluster_status.FILE_NAME) if server else None
        if server is None or not nodes or not nodes.get("nodes"):
            raise ServerFailed(unanswered(target, error)) from None
        return {"url": target.url, "model": server.model, "state": "the API does not answer", **nodes}
    return {"url": str(answer.url).removesuffix("/cluster/status"), **answered(target, answer, "state")}


def node_table(nodes: list[dict[str, Any]]) -> Table:
    table = Table("node", "address", "version", "device", "memory free", "ranks", "step", "loaded", "link", "heartbeat")
    several = len({rank["model"] for node in nodes for rank in node["ranks"] if rank["running"]}) > 1
    for node in nodes:
        ranks = [rank for rank in node["ranks"] if rank["running"]]
        table.add_row(
            _text(f"{node['name']}{' (draining)' if node['draining'] else ''}"),
            _text(node["address"]),
            _text(node["version"]),
            _text(node["device"]),
            f"{node['memory_available'] / 2**30:.1f} of {node['memory_total'] / 2**30:.1f} GiB",
            _text(", ".join(short_name(rank, several) for rank in ranks) or "-"),
            ", ".join(str(rank["step"]) for rank in ranks) or "-",
            ", ".join(f"{rank['load_progress']:.0%}" for rank in ranks) or "-",
            link_text(node),
            f"{node['heartbeat_age_seconds']:.1f} s ago",
        )
    return table


def short_name(rank: dict[str, Any], several: bool) -> str:
    """With its model, where nodes have ranks of several."""
    name = str(rank["model"]).rpartition("/")[2]
    return f"{name} {rank['rank']}" if several else str(rank["rank"])


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


def slowest_text(found: dict[str, Any]) -> str:
    """Which rank makes the others wait; empty where none stands out, or where nobody can see it: inside a collective
    waiting looks like computing.
    """
    ranks = found.get("ranks") or []
    if found.get("parallel") != "pipeline" or len(ranks) < 2 or catalog.get(found["transport"]).collective:
        return ""
    shares = sorted(((_computes(rank.get("phases") or {}), rank) for rank in ranks), key=lambda each: -each[0])
    (most, slowest), (next_most, _) = shares[:2]
    if most < STANDS_OUT * next_most or not most:
        return ""
    who = f"rank {slowest['rank']} ({slowest['node']})"
    return f"{who} makes the others wait: it computes {most:.0%} of the time, the next {next_most:.0%} (`chorus trace`)"


def _computes(phases: dict[str, float]) -> float:
    """The part of the time in which there was something to do."""
    asked = sum(phases.values()) - phases.get("idle", 0.0)
    return phases.get("compute", 0.0) / asked if asked >= ENOUGH_SECONDS else 0.0


def link_text(node: dict[str, Any]) -> str:
    """Round trip and bandwidth between the machine that serves and the node."""
    bandwidth = node.get("bandwidth_bytes_per_second")
    speed = f"{bandwidth / 1e6:,.0f} MB/s" if bandwidth else "not measured yet"
    return f"{node.get('round_trip_ms', 0):.1f} ms, {speed}"


def host_table(hosts: list[dict[str, Any]]) -> Table:
    table = Table("device", "host", "by", "runs", "what is wrong")
    for host in hosts:
        runs = ", ".join(f"{name} ({pid})" for name, pid in host["running"].items())
        wrong = _text(host["problem"]) if host["problem"] else Text("nothing", "green")
        table.add_row(_text(host["device_id"]), _text(host["host"]), host["by"], _text(runs or "-"), wrong)
    return table


def unready(rank: dict[str, Any]) -> str:
    """The state of a rank that does not serve now, such as lost; empty where it does."""
    state = str(rank.get("state") or "")
    return "" if state == "ready" else state


def rank_table(ranks: list[dict[str, Any]]) -> Table:
    """Their states too, where they are not all ready: the width is needed for other things."""
    troubled = any(map(unready, ranks))
    table = Table("rank", "node", *(["state"] if troubled else []), "device", "layers", "weights", "memory", "step")
    for rank in ranks:
        table.add_row(
            str(rank.get("rank")),
            _text(rank.get("node", "-")),
            *([_text(rank.get("state") or "-")] if troubled else []),
            _text(rank.get("device", "-")),
            str(rank.get("layers") or "-"),
            f"{rank.get('weight_bytes', 0) / 1e6:.0f} MB",
            f"{rank.get('memory_bytes', 0) / 1e6:.0f} MB",
            str(rank.get("step", "-")),
        )
    return table
