"""`chorus config`: what is in force, and whether a file is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml

from chorus.cli.output import fail
from chorus.cluster.config import ConfigError, load_settings

app = typer.Typer(help="Show and check the configuration.", no_args_is_help=True)


@app.command()
def show(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Read this file (YAML or JSON).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the settings in force here.

    Example: chorus config show -c chorus.yaml
    """
    try:
        settings = load_settings(config).model_dump(mode="json")
    except ConfigError as error:
        fail(str(error))
    typer.echo(json.dumps(settings, indent=2) if as_json else yaml.safe_dump(settings, sort_keys=False).rstrip())


@app.command()
def check(file: Annotated[Path, typer.Argument(help="The file to check (YAML or JSON).")]) -> None:
    """Say whether a configuration file is right.

    Example: chorus config check chorus.yaml
    """
    try:
        load_settings(file, environment={})
    except ConfigError as error:
        fail(str(error))
    typer.echo(f"{file}: ok")
