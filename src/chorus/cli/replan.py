"""`chorus replan`: divide every loaded model anew among the nodes that are there now."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from chorus.cli.output import console
from chorus.cli.own_server import PortOption, find_own
from chorus.cli.up import on_first_host
from chorus.deploy.control import ask
from chorus.messages.proto import control_pb2 as wire

REPLAN_SECONDS = 900.0
"""A node that is new may have to fetch its part of the model first."""


def replan(
    port: PortOption = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="In the cluster of this file, by SSH.")] = None,
) -> None:
    """Divide every loaded model anew among the nodes that are there now; running streams go on there.

    Example: chorus replan
    """
    if config:
        on_first_host(config, ["replan", *(["--port", str(port)] if port else [])], REPLAN_SECONDS * 2)
        return
    server = find_own(port).control_file
    with console.status("planning anew"):
        told = asyncio.run(
            ask(server, lambda control: control.Replan(wire.ReplanRequest(), timeout=REPLAN_SECONDS))
        ).told
    typer.echo(f"served by {told}")
