"""`chorus ps`: the models of a server, what each of them takes, and how long it stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from chorus.cli.elsewhere import on_its_first_host
from chorus.cli.model_table import model_rows, show
from chorus.cli.own_server import ASK_SECONDS, KeyOption, PortOption, UrlOption, find_target
from chorus.cli.status import gather_status


def ps(
    url: UrlOption = None,
    port: PortOption = None,
    api_key: KeyOption = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Ask the cluster of this file, by SSH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the models of a server: which are loaded, where, how large, and until when.

    Example: chorus ps
    """
    if config:
        on_its_first_host(config, ["ps"], as_json, ASK_SECONDS)
        return
    rows = model_rows(gather_status(find_target(url, port, api_key)))
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        show(rows, Console())
