"""`chorus bench`: how fast an OpenAI endpoint is for those who use it; one of ours, or anybody's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from chorus.bench import plot as plotting
from chorus.bench.client import Client, Endpoint, one_line
from chorus.bench.measure import Case, Measuring, Results, Workload
from chorus.bench.own import serving
from chorus.bench.report import document, remarks, table
from chorus.cli.output import console, fail, warn
from chorus.cli.own_server import KeyOption, find_target, is_here, trusted
from chorus.errors import ChorusError
from chorus.platform.storage.files import write_whole

DEFAULT_STREAMS = "1,8"
MOST_STREAMS = 1024
MOST_PROMPT_TOKENS = 10_000_000
STDOUT = "-"
INTERRUPTED = 130
TABLE_WIDTH = 100
"""In a narrower terminal lines are folded; figures are never cut off."""
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):\d{1,5}(/v1)?/?")


def bench(
    target: Annotated[str, typer.Argument(metavar="URL|MODEL", help="http://HOST:PORT, …/v1, or a model to serve.")],
    serve_options: Annotated[
        list[str] | None, typer.Argument(metavar="-- OPTIONS", help="With a MODEL: options of `chorus serve`.")
    ] = None,
    streams: Annotated[
        str | None, typer.Option(help=f"So many at once, one after the other ({DEFAULT_STREAMS}).")
    ] = None,
    prompt_tokens: Annotated[str, typer.Option(help="Lengths of prompts, about.")] = "16,1024",
    tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens of each answer, at most.")] = 64,
    shared_prefix: Annotated[
        int, typer.Option(min=0, max=MOST_PROMPT_TOKENS, help="So many tokens that all prompts begin with, on top.")
    ] = 0,
    agents: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_STREAMS, help="So many conversations at once, each with its whole history."),
    ] = None,
    turns: Annotated[int, typer.Option(min=1, max=1000, help="With --agents: questions of each.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Measure each so many times.")] = 3,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the endpoint calls the model (the only one it has).")
    ] = None,
    completions: Annotated[
        bool, typer.Option("--completions", help="Ask /v1/completions, not /v1/chat/completions.")
    ] = False,
    api_key: KeyOption = None,
    timeout: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds that one answer may take.")] = 600.0,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write every sample there (-: standard output).")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw speeds against streams.")] = None,
) -> None:
    """Measure an OpenAI endpoint as its user would: first token, speed, pauses; or a model, served meanwhile.

    Example: chorus bench http://127.0.0.1:8100 --streams 1,8,32 --json found.json

    Example: chorus bench smollm2-135m -- --ranks 2
    """
    if completions and agents:
        fail("--agents have conversations, and --completions have none: leave one of them out")
    workload = Workload(
        _cases(streams, agents, turns, prompt_tokens), tokens, rounds, shared_prefix, completions=completions
    )
    output = Output(json_file, plot)
    output.check()
    results, when = Results(model), datetime.now(UTC).isoformat(timespec="seconds")
    with _endpoint(target, serve_options or [], api_key) as endpoint:
        error = _measure(endpoint, workload, results, timeout)
        # Before the server is ended, which takes a while.
        output.tell(results, workload, endpoint.url, when)
    if error:
        fail(error)
    if not results.complete:
        if not results.measured:
            console.print("stopped before anything was measured")
        raise typer.Exit(INTERRUPTED)


@dataclass(frozen=True)
class Output:
    """Where the figures go besides the terminal."""

    json_file: str | None
    plot: Path | None

    def check(self) -> None:
        """Whoever measures for minutes should not learn only then that the file cannot be written."""
        for name, file in (("--json", self.json_file), ("--plot", self.plot)):
            if file is None or file == STDOUT:
                continue
            folder = Path(file).absolute().parent
            if not folder.is_dir() or not os.access(folder, os.W_OK) or Path(file).is_dir():
                fail(f"{name} {file}: cannot be written: name a file in a folder that is there and yours to write to")
        if self.plot:
            plotting.check_can_plot(self.plot)

    def tell(self, results: Results, workload: Workload, url: str, when: str) -> None:
        if not results.measured:
            return
        shown = Console(stderr=self.json_file == STDOUT, highlight=False)
        shown.width = max(shown.width, TABLE_WIDTH)
        name = f"{one_line(results.model or '')} at {url}"
        heading = f"{name}, answers of {workload.tokens} tokens, {_rounds(results, workload)}"
        shown.print(escape(heading), soft_wrap=True)
        shown.print(table(results))
        for remark in remarks(results, workload):
            warn(f"{url}: {remark}")
        text = json.dumps(document(results, workload, url, when)) + "\n"
        if self.json_file == STDOUT:
            typer.echo(text, nl=False)
        try:
            if self.json_file and self.json_file != STDOUT:
                write_whole(Path(self.json_file), text.encode())
            if self.plot:
                plotting.draw(results, name, self.plot)
        except OSError as error:
            fail(f"{error.filename or 'a file'} cannot be written: {error.strerror}: name another")


def _rounds(results: Results, workload: Workload) -> str:
    many = f"{workload.rounds} round{'s' if workload.rounds > 1 else ''}"
    return many if results.complete else f"stopped before the end of {many}"


def _cases(streams: str | None, agents: int | None, turns: int, prompt_tokens: str) -> tuple[Case, ...]:
    """Agents are measured in place of streams, or beside them where both are asked for."""
    lengths = numbers("--prompt-tokens", prompt_tokens, MOST_PROMPT_TOKENS)
    together = numbers("--streams", streams or DEFAULT_STREAMS, MOST_STREAMS) if streams or not agents else ()
    single = [Case(many, length) for length in lengths for many in together]
    return (*single, *(Case(agents, length, turns) for length in lengths if agents))


def numbers(option: str, text: str, most: int) -> tuple[int, ...]:
    """Each once, in the order in which they are given."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 and 1 <= int(part) <= most for part in parts):
        fail(f"{option} {text}: expected numbers from 1 to {most} separated by commas, e.g. 1,8")
    return tuple(dict.fromkeys(int(part) for part in parts))


def is_address(target: str) -> bool:
    """Whether it is where something is served; otherwise it is a model."""
    return "://" in target or (_ADDRESS.fullmatch(target) is not None and not Path(target).exists())


@contextlib.contextmanager
def _endpoint(target: str, options: list[str], key: str | None) -> Iterator[Endpoint]:
    """What is served at an address, or a model for as long as it is measured."""
    if is_address(target):
        if options:
            fail(f"options for chorus serve go with a MODEL, and {target} is served already: leave them out")
        yield _at(target, key)
        return
    with contextlib.ExitStack() as started:
        with console.status(f"chorus serve {escape(target)} is starting"):
            url = started.enter_context(serving(target, options))
        yield _at(url, key)


def _at(url: str, key: str | None) -> Endpoint:
    found = find_target(url, None, key, named_by="")
    return Endpoint(found.url, found.key, trusted(found.server), through_proxy=not is_here(found.url))


def _measure(endpoint: Endpoint, workload: Workload, results: Results, timeout: float) -> str | None:
    """The error that ended it; None where it is complete, or somebody has stopped it."""
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_run(endpoint, workload, results, timeout))
    except ChorusError as error:
        return str(error)
    return None


async def _run(endpoint: Endpoint, workload: Workload, results: Results, timeout: float) -> None:
    async with Client(endpoint, workload.most_streams, timeout) as client:
        with console.status("asking which model is served") as status:

            def told(what: str) -> None:
                status.update(escape(what))

            if results.model is None:
                results.model = await client.only_model()
            await Measuring(client, workload, results.model, told).run(results)
