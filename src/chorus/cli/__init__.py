"""The `chorus` command: one file per command; each prints, parses and calls down."""

from __future__ import annotations

from typing import Annotated

import typer

from chorus import __version__
from chorus.cli.config import app as config_app
from chorus.cli.doctor import doctor
from chorus.cli.keys import app as keys_app
from chorus.cli.localai import localai
from chorus.cli.models import app as models_app
from chorus.cli.models_preshard import preshard
from chorus.cli.plan import plan
from chorus.cli.serve import serve
from chorus.cli.up_commands import register as register_cluster_commands

app = typer.Typer(
    name="chorus",
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


app.command()(serve)
app.command()(plan)
app.command()(doctor)
app.command()(localai)
models_app.command()(preshard)
app.add_typer(models_app, name="models")
register_cluster_commands(app)
app.add_typer(config_app, name="config")
app.add_typer(keys_app, name="keys")


def main() -> None:
    app()
