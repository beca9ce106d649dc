"""`chorus requests` and `chorus cancel`: what a server works on, and an end to one of them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from chorus.cli.elsewhere import ConfigOption, JsonOption, on_its_first_host
from chorus.cli.own_server import ASK_SECONDS, KeyOption, PortOption, UrlOption, ask, find_target

Row = dict[str, Any]


def requests(
    recent: Annotated[bool, typer.Option("--recent", help="Those that have ended lately, too.")] = False,
    url: UrlOption = None,
    port: PortOption = None,
    api_key: KeyOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the requests that a server works on: whose, how far, how fast. Never their text.

    Example: chorus requests

    Example: chorus requests --recent --json
    """
    if config:
        on_its_first_host(config, ["requests", *(["--recent"] if recent else [])], as_json, ASK_SECONDS)
        return
    found = ask(find_target(url, port, api_key), "GET", "/requests")
    rows = [*found.get("running", ()), *(found.get("recent", ()) if recent else ())]
    if as_json:
        typer.echo(json.dumps({**found, "recent": found.get("recent", ()) if recent else []}, indent=2))
    elif rows:
        Console().print(table_of(rows))
    else:
        typer.echo("no request runs" if not recent else "no request runs, and none has ended lately")


def cancel(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="As `chorus requests` shows it.")],
    url: UrlOption = None,
    port: PortOption = None,
    api_key: KeyOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a request that a server works on; its client is told so.

    Example: chorus cancel 5f0c2a9e4d3b4f0f8f9f6f1b2c3d4e5f
    """
    if config:
        on_its_first_host(config, ["cancel", request_id], as_json, ASK_SECONDS)
        return
    found = ask(find_target(url, port, api_key), "POST", "/requests/cancel", {"id": request_id})
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        several = f" ({found['cancelled']} of this id)" if found.get("cancelled", 1) > 1 else ""
        typer.echo(f"{request_id} is cancelled{several}")


def table_of(rows: list[Row]) -> Table:
    # What is to be typed again must be whole.
    table = Table(Column("id", no_wrap=True), "model", "key", "state", "age", "prompt", "cached", "tokens", "tok/s")
    for row in rows:
        table.add_row(*(escape(text) for text in cells(row)))
    return table


def cells(row: Row) -> tuple[str, ...]:
    """One request as people read it."""

    def count(name: str) -> str:
        return f"{row[name]:,}" if row.get(name) is not None else "-"

    speed = row.get("tokens_per_second")
    return (
        str(row.get("id") or "-"),
        str(row.get("model") or "-"),
        str(row.get("key") or "-"),
        f"{row.get('state')}{', resumed' if row.get('resumed') else ''}",
        _age(row.get("age_seconds") or 0.0),
        count("prompt_tokens"),
        count("cached_tokens"),
        count("generated_tokens"),
        f"{speed:.1f}" if speed is not None else "-",
    )


def _age(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
