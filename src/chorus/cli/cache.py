"""`chorus cache`: what a running server keeps of earlier requests, and how to make it forget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from chorus.cli.output import fail
from chorus.cli.own_server import ASK_SECONDS, KEY_VARIABLE, KeyOption, PortOption, Target, UrlOption, ask, find_target
from chorus.platform.sizes import size


def cache(
    action: Annotated[Literal["clear"] | None, typer.Argument(help="Forget all of it; running requests go on.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Of this model; without it of the first, and clear makes all of them forget."),
    ] = None,
    url: UrlOption = None,
    port: PortOption = None,
    api_key: KeyOption = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Ask the cluster of this file, by SSH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a server keeps of earlier requests: size, entries, hit rate; `clear` makes it forget.

    Example: chorus cache

    Example: chorus cache clear --model smollm2-135m
    """
    if config:
        from chorus.cli.up import on_first_host  # SSH and what it needs take a while to import

        words = ["cache", *([action] if action else []), *(["--model", model] if model else [])]
        words += ["--json"] if as_json else []
        on_first_host(config, words, ASK_SECONDS)
        return
    target = find_target(url, port, api_key)
    body = {"model": model} if model else None
    found = ask(target, "POST", "/cache/clear", body) if action == "clear" else cache_facts(target, model)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif action == "clear":
        typer.echo(f"forgot {found['entries']:,} entries, {size(found['bytes'])} on the rank that held most")
    else:
        Console().print(table_of(found))


def cache_facts(target: Target, model: str | None = None) -> dict[str, Any]:
    health = ask(target, "GET", f"/health?model={quote(model, safe='')}" if model else "/health")
    if "engine" not in health:  # everybody may ask for the health; without a key for the model one hears no more
        if target.key:
            fail(f"{target} does not know this key, or the key is for other models")
        fail(f"{target} asks for a key: give --api-key or set {KEY_VARIABLE}")
    facts = (health["engine"] or {}).get("cache")
    if not isinstance(facts, dict):
        fail(f"{target} has nothing to tell of its cache: the engine is {health.get('status')}")
    return facts


def table_of(facts: dict[str, Any]) -> Table:
    """Bytes are those of the rank that has least room."""
    table = Table(show_header=False)
    if not facts["enabled"]:
        table.add_row("off", escape(facts["reason"]))
    table.add_row("entries", f"{facts['entries']:,} with {facts['tokens']:,} tokens")
    stored, running, most = (size(facts[name]) for name in ("bytes", "live_bytes", "budget_bytes"))
    table.add_row("memory", f"{stored} stored, {running} running, of {most}")
    if facts["disk_budget_bytes"]:
        written, most = size(facts["disk_bytes"]), size(facts["disk_budget_bytes"])
        table.add_row("disk", f"{written} of {most}, {facts['restored_tokens']:,} tokens read back")
    rate = "-" if facts["hit_rate"] is None else f"{facts['hit_rate']:.1%}"
    table.add_row("hit rate", f"{rate} ({facts['cached_tokens']:,} of {facts['prompt_tokens']:,} prompt tokens)")
    table.add_row("pinned", f"{facts['conversations']:,} conversations")
    table.add_row("evicted", f"{facts['evicted_tokens']:,} tokens")
    table.add_row("preempted", f"{facts['preempted']:,} requests")
    return table
