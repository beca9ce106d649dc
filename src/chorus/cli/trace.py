"""`chorus trace`: what every rank of a served model does for some steps, on one clock, for Perfetto."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import grpc
import grpc.aio
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from chorus import __version__
from chorus.cli.output import console, fail, warn
from chorus.cli.own_server import PortOption, find_own
from chorus.cluster import status as cluster_status
from chorus.config.front_end import ModelSettings
from chorus.deploy.control import ask
from chorus.messages.calls import own_words, why_failed
from chorus.messages.deploy import ModelRow, nearest_name, table_from_wire
from chorus.messages.proto import control_pb2, control_pb2_grpc, engine_pb2, engine_pb2_grpc
from chorus.platform.storage.files import write_whole
from chorus.telemetry.phases import MOST_SPANS, NOBODY
from chorus.telemetry.trace.clocks import Offset
from chorus.telemetry.trace.perfetto import UNDER_WAY, RankRecording, Trace
from chorus.telemetry.trace.wire import spans_from_wire, steps_from_wire

MOST_STEPS = 10_000
MOST_SECONDS = 300.0
ANSWER_SECONDS = 60.0
"""How long a server may take to say which models it has, and its ranks to hand out what they have recorded."""
MAX_MESSAGE = 64 << 20

Report = Callable[[int], None]


def trace(
    steps: Annotated[int, typer.Option(min=1, max=MOST_STEPS, help="Steps to record.")] = 200,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=MOST_SECONDS, help="End after so long, however many steps there were.")
    ] = 30.0,
    model: Annotated[str | None, typer.Option(help="Of this model, where there are several.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the trace.")] = Path("trace.json"),
    port: PortOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what it found as JSON.")] = False,
) -> None:
    """Record what every rank does for some steps: who computes, who waits for whom, what travels.

    Example: chorus trace --steps 100 -o slow.json
    """
    server = find_own(port)
    row = _chosen(asyncio.run(ask(server.control_file, _models)), model)
    settings = ModelSettings.model_validate_json(row.settings)
    with _progress(steps) as report:
        ranks = asyncio.run(_record(settings.engine_address, steps, seconds, report))
    missing = {rank.rank: rank.missing for rank in ranks if rank.missing}
    for number, why in missing.items():
        warn(f"rank {number} has recorded nothing: {why}")
    found = read(ranks, _names(settings))
    text = json.dumps(found.document(model=row.id, chorus=__version__), separators=(",", ":"))
    try:
        write_whole(output, text.encode())
    except OSError as error:
        fail(f"{output} cannot be written: {error.strerror}")
    told = summary(found, row.id, output)
    if as_json:
        typer.echo(json.dumps(told | {"missing": {str(number): why for number, why in missing.items()}}, indent=2))
        return
    show(told, Console())
    if not told["steps"]:
        console.print("nothing was asked of it meanwhile: no step ran", markup=False)


async def _models(control: control_pb2_grpc.ControlStub) -> list[ModelRow]:
    nothing: tuple[control_pb2.Report, ...] = ()
    async for table in control.Attend(iter(nothing), timeout=ANSWER_SECONDS):
        return list(table_from_wire(table).models)
    return []


def _chosen(rows: list[ModelRow], name: str | None) -> ModelRow:
    """The model that is meant, which must be loaded."""
    names = {each: row for row in reversed(rows) for each in ModelSettings.model_validate_json(row.settings).names}
    row = names.get(name) if name else next(iter(rows), None)
    if row is None:
        nearest = nearest_name(name or "", names)
        fail(f"no model is called {name}{f': did you mean {nearest}?' if nearest else ''}")
    if not row.state.takes_requests:
        fail(f"{row.id} is {row.state.name.lower()}: `chorus load {row.id}` loads it")
    return row


async def _record(address: str, steps: int, seconds: float, report: Report) -> list[engine_pb2.RankTrace]:
    options = [("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(address, options) as channel:
        wanted = engine_pb2.TraceRequest(steps=steps, seconds=seconds)
        call = engine_pb2_grpc.EngineStub(channel).Trace(wanted, timeout=seconds + ANSWER_SECONDS)
        ranks = []
        try:
            async for reply in call:
                if reply.HasField("rank"):
                    ranks.append(reply.rank)
                else:
                    report(reply.steps_done)
        except grpc.aio.AioRpcError as error:
            fail(own_words(error) or f"the engine does not answer: {why_failed(error)}")
        return ranks


def _names(settings: ModelSettings) -> dict[int, str]:
    """What ranks' machines are called, where somebody knows it."""
    found = cluster_status.read(settings.status_file) if settings.status_file else None
    nodes = {rank["rank"]: node["name"] for node in (found or {}).get("nodes", ()) for rank in node["ranks"]}
    return dict(enumerate(settings.rank_names)) | nodes


def read(ranks: list[engine_pb2.RankTrace], names: dict[int, str]) -> Trace:
    """All that came, on one clock."""
    return Trace(
        [
            RankRecording(
                rank.rank,
                names.get(rank.rank) or rank.host,
                spans_from_wire(rank.recording),
                Offset(rank.clock_offset_seconds, rank.clock_error_seconds),
                steps_from_wire(rank.recording),
                rank.recording.full,
                rank.pid,
            )
            for rank in ranks
            if not rank.missing
        ]
    )


def summary(found: Trace, model: str, output: Path) -> dict[str, Any]:
    return {
        "model": model,
        "file": str(output),
        "seconds": found.seconds,
        "steps": len(found.steps_seen()),
        "ranks": [
            {
                "rank": rank.rank,
                "node": rank.node,
                "phases": found.phase_seconds(rank.rank),
                "waited_for": {
                    UNDER_WAY if number == NOBODY else str(number): seconds
                    for number, seconds in sorted(found.waited_for(rank.rank).items(), key=lambda each: -each[1])
                },
                "clock_offset_seconds": rank.offset.seconds,
                "clock_error_seconds": rank.offset.error,
                "full": rank.full,
            }
            for rank in found.ranks
        ],
    }


def show(told: dict[str, Any], out: Console) -> None:
    whole = told["seconds"] or 1.0
    table = Table("rank", "node", "compute", "wait", "for rank", "transport", "other", "idle")
    for column in table.columns:
        column.no_wrap = column.header != "for rank"
    for rank in told["ranks"]:
        phases, waits = rank["phases"], rank["waited_for"].items()
        phases |= {"other": phases["sampling"] + phases["schedule"]}
        share = {name: f"{seconds / whole:.0%}" for name, seconds in phases.items()}
        reasons = ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in waits if seconds >= whole / 100)
        table.add_row(
            *(str(rank["rank"]), escape(rank["node"]), share["compute"], share["wait"], reasons or "-"),
            *(share["transport"], share["other"], share["idle"]),
        )
        if rank["full"]:
            warn(f"rank {rank['rank']} has kept its first {MOST_SPANS:,} spans: record fewer steps")
    out.print(table)
    error = max((rank["clock_error_seconds"] for rank in told["ranks"]), default=0.0)
    clocks = f", clocks agree within {error * 1e3:.2f} ms" if error else ""
    out.print(f"{told['steps']} steps in {told['seconds']:.2f} s{clocks}", markup=False, highlight=False)
    out.print(f"{told['file']}: open it at https://ui.perfetto.dev", markup=False, highlight=False, soft_wrap=True)


class _progress:
    """A bar on a terminal, which is gone when it is done; nothing elsewhere."""

    def __init__(self, steps: int) -> None:
        columns = (TextColumn("recording"), BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f} steps"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=steps)

    def __enter__(self) -> Report:
        self._bar.start()
        return lambda done: self._bar.update(self._task, completed=done)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
