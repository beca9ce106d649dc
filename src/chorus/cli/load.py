"""`chorus load` and `chorus unload`: which models of a server are in memory.

Over HTTP, wherever the server is: it knows its own user's commands by their key, and nobody would be asked over the
control socket that cannot be asked so.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Annotated, Any

import httpx
import typer

from chorus.cli.elsewhere import ConfigOption, JsonOption, on_its_first_host
from chorus.cli.model_table import Row, names_of
from chorus.cli.output import fail
from chorus.cli.own_server import (
    ASK_SECONDS,
    KeyOption,
    PortOption,
    Target,
    UrlOption,
    answered,
    ask,
    find_target,
    request,
    unanswered,
)
from chorus.platform.progress import Progress
from chorus.platform.terminal import shown

LOOK_SECONDS = 0.5
NOT_YET = 202
"""It is decided, and takes longer than the server lets anybody wait."""

Report = Callable[[Row], None]

ModelArgument = Annotated[str, typer.Argument(help="Its name, its id or an alias, as `chorus ps` shows it.")]


def load(
    model: ModelArgument,
    force: Annotated[bool, typer.Option("--force", help="Although it does not fit beside the others.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until it must be ready.")] = 900.0,
    url: UrlOption = None,
    port: PortOption = None,
    api_key: KeyOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a server load one of its models, and wait until it is ready.

    Example: chorus load smollm2-135m
    """
    if config:
        words = ["load", model, "--timeout", str(timeout), *(["--force"] if force else [])]
        on_its_first_host(config, words, as_json, timeout + ASK_SECONDS)
        return
    target = find_target(url, port, api_key)
    started = time.monotonic()
    with shown(model) as report:
        found = ask_to_load(target, model, force, timeout, lambda row: report(load_progress(model, row)))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        typer.echo(f"{found.get('id', model)} is ready, after {time.monotonic() - started:.1f} s")


def unload(
    model: ModelArgument,
    url: UrlOption = None,
    port: PortOption = None,
    api_key: KeyOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a server unload a model; its running requests finish first.

    Example: chorus unload smollm2-135m
    """
    if config:
        on_its_first_host(config, ["unload", model], as_json, ASK_SECONDS)
        return
    found = ask(find_target(url, port, api_key), "POST", "/models/unload", {"model": model, "wait": False})
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        typer.echo(f"{found.get('id', model)}: {found.get('told') or found.get('state')}")


def ask_to_load(target: Target, model: str, force: bool, timeout: float, report: Report) -> dict[str, Any]:
    """The server's answer once the model is ready. Asked again for as long as the server's own patience is shorter."""
    deadline = time.monotonic() + timeout
    body = {"model": model, "force": force, "wait": True}
    while True:
        answer = _watched(target, body, deadline - time.monotonic(), report)
        if isinstance(answer, httpx.HTTPError) and not isinstance(answer, httpx.ReadTimeout):
            fail(unanswered(target, answer))
        if isinstance(answer, httpx.Response) and answer.status_code != NOT_YET:
            return answered(target, answer)
        if time.monotonic() >= deadline:
            fail(f"{model} is not ready after {timeout:g} s: it goes on, and `chorus ps` shows how far it is")
        time.sleep(LOOK_SECONDS)


def _watched(target: Target, body: dict[str, Any], seconds: float, report: Report) -> httpx.Response | httpx.HTTPError:
    """What the server says to the request, and meanwhile how far the model is."""
    answers: SimpleQueue[httpx.Response | httpx.HTTPError] = SimpleQueue()

    def send() -> None:
        try:
            answers.put(request(target, "POST", "/models/load", body, max(LOOK_SECONDS, seconds)))
        except httpx.HTTPError as error:
            answers.put(error)

    # Whoever types Ctrl-C does not wait for the answer.
    threading.Thread(target=send, daemon=True).start()
    while True:
        try:
            return answers.get(timeout=LOOK_SECONDS)
        except Empty:
            if row := _row(target, body["model"]):
                report(row)


def _row(target: Target, model: str) -> Row | None:
    """A model as the server shows it now; None where it cannot say."""
    try:
        answer = request(target, "GET", "/cluster/status", seconds=ASK_SECONDS)
    except httpx.HTTPError:
        return None
    rows = answer.json().get("models") or () if answer.status_code == 200 else ()
    return next((row for row in rows if model in names_of(row)), None)


def load_progress(model: str, row: Row) -> Progress:
    """How far a load is, as the server tells: in bytes while some move, then as a share."""
    state, done, total = str(row.get("state")), row.get("loaded_bytes") or 0, row.get("total_bytes") or 0
    label = f"{model}: {row.get('detail') or state}"
    if total > done:
        return Progress(label, done, total)
    return Progress.of_share(label, (row.get("progress") or 0.0) if state == "loading" else 0.0)
