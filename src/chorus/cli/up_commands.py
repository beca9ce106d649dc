"""The commands that make machines a cluster, for the `chorus` command to take in."""

from __future__ import annotations

import typer

from chorus.cli.drain import drain
from chorus.cli.join import join
from chorus.cli.logs import logs
from chorus.cli.status import status
from chorus.cli.test import try_served
from chorus.cli.token import app as token_app
from chorus.cli.up import down, restart, up
from chorus.cli.worker import app as worker_app


def register(app: typer.Typer) -> None:
    for command in (up, down, restart, join, status, logs, drain):
        app.command()(command)
    app.command("test")(try_served)
    app.add_typer(token_app, name="token")
    app.add_typer(worker_app, name="worker")
