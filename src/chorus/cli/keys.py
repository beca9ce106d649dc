"""`chorus keys`: who may call the API from other machines."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from chorus.cli.output import console, fail
from chorus.security.key_file import add_key, default_key_file, load_keys, remove_key
from chorus.security.key_rules import ADMIN, USE

app = typer.Typer(help="Make, list and remove API keys.", no_args_is_help=True)

_ADMINS = "load, unload and pull models, clear caches and cancel the requests of others"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="What to call the key, in logs and limits.")]
KeyFile = Annotated[Path | None, typer.Option("--file", help="The key file, if not the usual one.")]


@app.command()
def new(
    name: Name,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="How often it may ask.")] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="How much it may have open at once.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A model it is for, by any of its names; repeatable (all).")
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="It may also do what concerns everybody who is served, as load models.")
    ] = False,
    file: KeyFile = None,
    json: AsJson = False,
) -> None:
    """Make a key and print it. Only its hash is kept, so this is the one time it can be seen.

    Servers that ask for keys know it at once; one that was started without any asks for none until it is restarted.

    Example: chorus keys new laptop --requests-per-minute 60

    Example: chorus keys new anna --model qwen3-4b --model smollm2-135m

    Example: chorus keys new operator --admin
    """
    path = file or default_key_file()
    scopes, models = ADMIN if admin else USE, model or []
    key = add_key(path, name, requests_per_minute, max_concurrent, scopes=scopes, models=models)
    if json:
        typer.echo(json_format.dumps({"id": name, "key": key, "scopes": scopes, "models": models or None}))
        return
    typer.echo(key)
    console.print(f"Kept as {escape(name)} in {escape(str(path))}; running servers that ask for keys know it now.")
    console.print(escape(what_it_may(admin, models)))


def what_it_may(admin: bool, models: Sequence[str]) -> str:
    """With the way to a key that may do more, or less."""
    may = f"It may use {', '.join(models) or 'every model'}"
    if admin:
        return f"{may} and, as admin, {_ADMINS}; one made without --admin may use models only."
    return f"{may}; to {_ADMINS} takes one made with --admin."


@app.command("list")
def list_keys(file: KeyFile = None, json: AsJson = False) -> None:
    """List the keys by name, with what they may do and their limits.

    Example: chorus keys list
    """
    if file and not file.is_file():
        fail(f"there is no key file {file}: leave out --file for the usual one, {default_key_file()}")
    keys = load_keys(file or default_key_file())
    if json:
        typer.echo(json_format.dumps([key.model_dump(exclude={"sha256"}) for key in keys]))
        return
    table = Table("name", "may", "models", "requests a minute", "open at once")
    for key in keys:
        limits = (str(limit or "any") for limit in (key.requests_per_minute, key.max_concurrent))
        models = ", ".join(key.models or ()) or "all"
        table.add_row(escape(key.id), "admin" if key.may_admin else "use", escape(models), *limits)
    console.print(table if keys else "There are no keys: make one with `chorus keys new NAME`.")


@app.command()
def rm(name: Name, file: KeyFile = None) -> None:
    """Remove a key; running servers refuse it from their next request on.

    A server that asks for keys goes on asking, also when the last one is gone.

    Example: chorus keys rm laptop
    """
    remove_key(file or default_key_file(), name)
    console.print(f"Removed {escape(name)}.")
