"""`chorus config`: what is in force, and whether a file is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chorus.cli.output import console, fail, warn
from chorus.config.hostfile import address_refusal
from chorus.config.sources import LoadedSettings, configured_file, load, load_told

app = typer.Typer(help="Show and check the configuration.", no_args_is_help=True)


@app.command()
def show(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Read this file (YAML or JSON).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print every setting in force here, and where it comes from.

    Example: chorus config show -c chorus.yaml
    """
    loaded = load_told(config)
    values = effective(loaded)
    if as_json:
        shown = {key: {"value": value, "origin": loaded.origins[key]} for key, value in values.items()}
        shown["models"]["origins"] = list(loaded.model_origins)
        typer.echo(json.dumps(shown, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("SETTING", "VALUE", "FROM"):
        table.add_column(title, overflow="fold", no_wrap=title == "SETTING")
    for key, value, origin in _lines(values, loaded):
        text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
        table.add_row(key, Text(text), Text(origin, style="dim" if origin == "default" else "green"))
    Console().print(table)


def _lines(values: dict[str, Any], loaded: LoadedSettings) -> Iterator[tuple[str, Any, str]]:
    """Each setting with its value and its origin; of several models, each by itself."""
    for key, value in values.items():
        if key == "models" and value:
            for number, (model, origin) in enumerate(zip(value, loaded.model_origins, strict=True)):
                yield f"models[{number}]", model, origin
        else:
            yield key, value, loaded.origins[key]


@app.command()
def check(file: Annotated[Path, typer.Argument(help="Settings or a hostfile (YAML or JSON).")]) -> None:
    """Say whether a configuration file or a hostfile is right, by itself; the one of this folder with its .env.

    Example: chorus config check chorus.yaml
    """
    own = configured_file()
    with_dotenv = own is not None and own.resolve() == file.resolve()
    loaded = load(file, environment={}, with_dotenv=with_dotenv)
    for warning in loaded.warnings:
        warn(warning)
    if refusal := address_refusal(loaded.settings.devices):
        fail(f"{file}: {refusal}")
    found = [f"rank {rank} {device.device_id}" for rank, device in enumerate(loaded.settings.devices)]
    found += [f"model {model.source}" for model in loaded.settings.models]
    typer.echo(f"{file}: ok" + (f" ({', '.join(found)})" if found else ""))
    hostfile = loaded.settings.cluster.hostfile
    read = [file, *([hostfile] if hostfile else []), *([".env"] if with_dotenv and Path(".env").is_file() else [])]
    told = f"read: {', '.join(map(str, read))}; with everything else that counts here: chorus config show -c {file}"
    console.print(told, soft_wrap=True, markup=False)


def effective(loaded: LoadedSettings) -> dict[str, Any]:
    """Every setting by its full key, without what a device or a model leaves out, and without any variable's value."""
    tree = loaded.settings.model_dump(mode="json")
    tree["cluster"] = loaded.settings.cluster.shown()
    tree["devices"] = [
        device.model_dump(mode="json", exclude_defaults=True) | {"port": device.port, "role": device.role}
        for device in loaded.settings.devices
    ]
    tree["models"] = [
        {"source": model.source, **model.model_dump(mode="json", exclude_unset=True)}
        for model in loaded.settings.models
    ]
    values = {}
    for key in loaded.origins:
        section, _, name = key.rpartition(".")
        values[key] = tree[section][name] if section else tree[name]
    return values
