"""`chorus models`: what is on this machine, and how it gets there and away."""

from __future__ import annotations

import json as json_format
import os
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from chorus.cli.models_preshard import preshard
from chorus.cli.output import console
from chorus.cli.own_server import Target, reachable, request
from chorus.cluster.servers import running_servers
from chorus.models import LocalModel, resolve
from chorus.models.catalog import CATALOG
from chorus.models.hub.cache import cached_models, remove_cached
from chorus.models.imports import import_model
from chorus.models.resolve import split_hub_id
from chorus.models.store import Store
from chorus.platform.terminal import shown

app = typer.Typer(help="Pull, import, list and remove models.", no_args_is_help=True)

LOOK_SECONDS = 2.0

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Listing:
    """One line of `chorus models list`; a catalog model that is not here yet has neither path nor bytes."""

    name: str
    kind: str
    bytes: int | None
    path: str | None
    about: str
    loaded: tuple[str, ...] = ()
    """Addresses of servers of this user that have it loaded now."""


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A catalog name, or a Hugging Face id with an optional @REVISION.")],
    json: AsJson = False,
) -> None:
    """Download a model, or what is missing of it, and check its files.

    Example: chorus models pull smollm2-135m
    """
    with shown(f"finding {name}") as report:
        model = resolve(name, progress=report)
    if not json and model.path == Path(os.path.expanduser(name)).resolve():
        quoted = escape(shlex.quote(name))
        console.print(
            f"{quoted} is a folder on this machine, served as it is: chorus serve {quoted}. Nothing was stored; "
            f"a copy in the store is made by: chorus models import {quoted}",
            soft_wrap=True,
        )
        return
    _show_ready(model, json)


@app.command("list")
def list_models(json: AsJson = False) -> None:
    """Show the models on this machine and the catalog, and which of them your running servers have loaded.

    Example: chorus models list --json
    """
    loaded = loaded_models()
    listings = [replace(listing, loaded=loaded.get(listing.name, ())) for listing in find_listings()]
    if json:
        typer.echo(json_format.dumps([asdict(listing) for listing in listings], indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("NAME", "KIND", "SIZE", "LOADED", "WHERE"):
        table.add_column(title, justify="right" if title == "SIZE" else "left", overflow="fold")
    for listing in listings:
        size = "-" if listing.bytes is None else decimal(listing.bytes)
        where = listing.path or listing.about
        table.add_row(*map(Text, (listing.name, listing.kind, size, ", ".join(listing.loaded) or "-", where)))
    Console().print(table)


@app.command("import")
def import_file(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.gguf|FOLDER",
            help="A GGUF file of the llama or qwen family, or a folder with config.json and safetensors.",
        ),
    ],
    name: Annotated[str | None, typer.Option(help="The model's name from now on (the file's or folder's own).")] = None,
    json: AsJson = False,
) -> None:
    """Make a GGUF file, or a copy of a model's folder, into a model of the store; neither is needed afterwards.

    Example: chorus models import Qwen3-4B-Q4_K_M.gguf --name qwen3-4b

    Example: chorus models import ./my-finetune
    """
    with shown(f"reading {file}") as report:
        entry = import_model(file, name, progress=report)
    _show_ready(LocalModel(str(file), entry.name, entry.path), json)


@app.command("rm")
def remove(
    name: Annotated[str, typer.Argument(help="A name that `chorus models list` shows, or a hub id with @REVISION.")],
) -> None:
    """Delete a model from the store, or from the Hugging Face cache.

    Example: chorus models rm smollm2-135m
    """
    parsed = split_hub_id(name)
    freed = remove_cached(*parsed) if parsed else Store.default().remove(name)
    console.print(f"Removed {escape(name)}, {decimal(freed)} free again.")


app.command()(preshard)


def find_listings() -> list[Listing]:
    """The store, then the Hugging Face cache, then what the catalog could add."""
    stored = [
        Listing(entry.name, "store", entry.nbytes, str(entry.path), f"from {entry.origin.source}")
        for entry in Store.default().entries()
    ]
    cached = [Listing(model.id, "hub", model.nbytes, str(model.path), "") for model in cached_models()]
    have = {listing.name for listing in stored}
    absent = [Listing(model.name, "catalog", None, None, model.about) for model in CATALOG.values()]
    return [*stored, *cached, *(listing for listing in absent if listing.name not in have)]


def loaded_models() -> dict[str, tuple[str, ...]]:
    """By the names of models: where servers of this user have them loaded. One that does not answer soon has none."""
    found: dict[str, tuple[str, ...]] = {}
    for server in running_servers():
        target = Target(reachable(server.url), server=server, key=server.key)
        try:
            told = request(target, "GET", "/v1/models", seconds=LOOK_SECONDS).json()
            names = [str(entry["id"]) for entry in told["data"] if entry.get("loaded")]
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
            continue
        for name in names:
            found[name] = (*found.get(name, ()), target.url)
    return found


def _show_ready(model: LocalModel, json: bool) -> None:
    if json:
        typer.echo(json_format.dumps({"id": model.id, "path": str(model.path)}, indent=2))
    else:
        console.print(f"[green]{escape(model.id)}[/] is ready: chorus serve {escape(model.id)}")
