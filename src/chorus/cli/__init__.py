"""The `chorus` command, a file per command: each parses, calls down and prints."""

from __future__ import annotations

from typing import Annotated

import typer

from chorus import __version__
from chorus.cli.commands import Commands
from chorus.platform.process.output import survive_lost_output

app = typer.Typer(
    name="chorus",
    cls=Commands,
    help="Many machines, one voice: serve one language model from all your machines together.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"chorus {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    # What a command does is worth more than what it says about it; its data, on stdout, must be whole.
    survive_lost_output("stderr")
    app()
