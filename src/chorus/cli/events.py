"""`chorus events`: what happened, from the journal on disk."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from chorus.cli.output import console as remarks
from chorus.cli.output import fail
from chorus.platform.storage.paths import STATE_VARIABLE, brought_up, state_dir
from chorus.telemetry import journal
from chorus.telemetry.events import KINDS, Event, Level
from chorus.telemetry.moments import parse_moment

LOOK_SECONDS = 0.25
USUAL_LINES = 200
_STYLES = {Level.INFO: "", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def show_events(
    since: Annotated[
        str | None, typer.Option(help="All since then: 2h, 7d, today, yesterday, 2026-01-31, 2026-01-31T22:00.")
    ] = None,
    lines: Annotated[
        int | None, typer.Option("-n", "--lines", min=0, help=f"The latest so many ({USUAL_LINES}; with --since all).")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what happens.")] = False,
    model: Annotated[str | None, typer.Option(help="Only what concerns this model.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only events of this kind, e.g. rank_lost.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Only of the server on this port.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --follow an object a line.")] = False,
) -> None:
    """Tell what happened: starts, losses, recoveries, loads, refusals; also when nothing runs any more.

    Example: chorus events --since yesterday

    Example: chorus events -f --model smollm2-135m
    """
    if kind is not None and kind not in KINDS:
        fail(f"there is no kind of event {kind!r}; there are: {', '.join(sorted(KINDS))}")
    moment = parse_moment(since, time.time()) if since else 0.0
    limit = lines if lines is not None or since else USUAL_LINES

    def wanted(event: Event) -> bool:
        return (
            (model is None or event.model == model)
            and (kind is None or event.kind == kind)
            and (port is None or event.server.endswith(f":{port}"))
        )

    folders = journals()
    tails = [journal.Tail(folder) for folder in folders] if follow else []
    found = read_all(folders, moment, limit, wanted)
    if as_json and not follow:
        typer.echo(json.dumps([event.shown() for event in found], indent=2, ensure_ascii=False))
        return
    write = _write_json if as_json else _writer()
    for event in found:
        write(event)
    if not found and not follow:
        remarks.print(f"nothing was written of it in {', '.join(map(str, folders))}", soft_wrap=True, markup=False)
    with contextlib.suppress(KeyboardInterrupt):
        while follow:
            new = [event for tail in tails for event in tail.new() if wanted(event) and event not in found]
            for event in new:
                write(event)
            time.sleep(LOOK_SECONDS)


def journals() -> list[Path]:
    """Of this state folder; where nobody chose one, also of the clusters that were brought up on this machine."""
    states = [state_dir()]
    if STATE_VARIABLE not in os.environ:
        states += sorted(brought_up().glob("*/*/state"))
    return [journal.folder_in(state) for state in states]


def read_all(folders: Iterable[Path], since: float, limit: int | None, wanted: Callable[[Event], bool]) -> list[Event]:
    if limit == 0:
        return []
    found = [event for folder in folders for event in journal.read(folder, since, limit, wanted)]
    found.sort(key=lambda event: event.time)
    return found if limit is None else found[-limit:]


def _write_json(event: Event) -> None:
    typer.echo(json.dumps(event.shown(), ensure_ascii=False))


def _writer() -> Callable[[Event], None]:
    """A line for each; in colour in a terminal."""
    console = Console(highlight=False)

    def write(event: Event) -> None:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
        style = _STYLES[event.level]
        line = Text.assemble((clock, "dim"), "  ", (f"{event.level.upper():<7}", style), "  ")
        line.append(f"{event.kind:<16}  ", "dim").append(event.text, style)
        console.print(line, soft_wrap=True)

    return write
