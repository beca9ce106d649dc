"""`chorus top`: models, ranks and requests of a server, live."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from chorus.cli.live import Poller, Seen, watch
from chorus.cli.own_server import Following, KeyOption, PortOption, UrlOption, find_target
from chorus.cli.status import looks
from chorus.cli.top.snapshot import Snapshot, cancel, gather, speed
from chorus.cli.top.view import SORTS, Choice, TopView, ordered, plain_lines
from chorus.errors import ChorusError
from chorus.platform.terminal import harmless

Ask = Callable[[], Snapshot]


def top(
    url: UrlOption = None,
    port: PortOption = None,
    api_key: KeyOption = None,
    every: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once, in plain lines.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, an object for each look.")] = False,
) -> None:
    """Watch a server: tokens per second, its ranks and the requests that run; q leaves, c cancels a request.

    Example: chorus top

    Example: chorus top --once --json
    """
    server = Following(url, port, api_key)

    def ask() -> Snapshot:
        return server.ask(gather)

    if once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print_looks(ask, every, once, as_json)
    else:
        _Watching(ask, lambda name: cancel(find_target(url, port, api_key), name), every).run()


def _print_looks(ask: Ask, every: float, once: bool, as_json: bool) -> None:
    if once:
        _print(Seen(ask()), None, as_json)
        return
    before: Snapshot | None = None
    with contextlib.suppress(KeyboardInterrupt):
        for seen in looks(ask, every):
            _print(seen, before, as_json)
            before = seen.found


def _print(seen: Seen[Snapshot], before: Snapshot | None, as_json: bool) -> None:
    now = seen.found
    if as_json:
        told: dict[str, Any] = {"time": round(time.time(), 3)}
        if seen.problem or now is None:
            told["problem"] = seen.problem
        else:
            told |= {**asdict(now), "tokens_per_second": speed(before, now)}
            del told["when"]
        typer.echo(json.dumps(told))
        return
    clock = time.strftime("%H:%M:%S")
    lines = [seen.problem] if seen.problem or now is None else plain_lines(before, now)
    typer.echo("\n".join(f"{clock}  {line}" for line in lines))


class _Watching:
    """The view, and what keys do to it."""

    def __init__(self, ask: Ask, end: Callable[[str], str], every: float) -> None:
        self._end = end
        self._choice = Choice()
        self._before: Snapshot | None = None
        self._now: Snapshot | None = None
        self._poller: Poller[Snapshot] = Poller(ask, every)

    def run(self) -> None:
        watch(Console(highlight=False), self._poller, self.draw, self.press)

    def draw(self, seen: Seen[Snapshot]) -> RenderableType:
        if seen.found is not self._now:
            self._before, self._now = self._now, seen.found
        return TopView(self._before, self._now, self._choice, seen.trouble(time.monotonic()))

    def press(self, key: str) -> bool:
        choice, rows = self._choice, ordered(self._now, self._choice)
        if choice.confirming:
            self._choice = replace(choice, confirming=False)
            if key == "y":
                # Whoever watches goes on watching while the server thinks about it.
                threading.Thread(target=self._cancel, args=(choice.selected,), daemon=True).start()
            return True
        if key in ("up", "down"):
            self._choice = choice.moved(rows, 1 if key == "down" else -1)
        elif key == "s":
            self._choice = replace(choice, sort=(choice.sort + 1) % len(SORTS))
        elif key == "c":
            known = any(row.get("id") == choice.selected for row in rows)
            chosen = choice if known else choice.moved(rows, 0)
            nothing = "" if chosen.selected else "nothing to cancel"
            self._choice = replace(chosen, confirming=bool(chosen.selected), told=nothing)
        else:
            return False
        return True

    def _cancel(self, name: str) -> None:
        try:
            told = self._end(name)
        except ChorusError as error:
            told = str(error)
        self._choice = replace(self._choice, told=harmless(told))
        self._poller.soon()
