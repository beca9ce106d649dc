"""`python -m tests.fuzz`: fuzzed requests to a real server, and what must hold whatever they are.

A failing run says how to send the request again: every request follows from the seed and its number, and those that
went wrong are written to files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import machine, report
from benchmarks.report import Goal, Result, Samples
from benchmarks.servers import ROOT, HttpServer, ServerFailed, chorus, end_cleanly_when_told
from benchmarks.soak import is_idle
from tests.api.recorded_clients import MODEL_ID
from tests.fuzz.server import watching
from tests.fuzz.server.attempts import KEY, Attempt, load, save
from tests.fuzz.server.making import Maker
from tests.fuzz.server.model import write_model
from tests.fuzz.server.sending import Answer, problem, send
from tests.fuzz.server.watching import Identity, Watch
from tests.support.state import keep_apart

FULL = 20_000
IDLE_SECONDS = 90.0
MOST_SAVED = 200
WARM = 5_000
"""Requests after which caches are filled, so that growth says something."""
SETTINGS = {
    "api": {"max_tokens": 16, "embeddings": True, "max_stored_bytes": 1 << 20},
    "engine": {"context": 512},
}
"""Answers are short unless a request says otherwise. What `/v1/responses` keeps on purpose fills its place long
before half of the requests: what grows after that is a leak."""


@dataclass(frozen=True)
class Options:
    requests: int = FULL
    seed: int = 1
    minutes: float = 90.0
    clients: int = 6
    ranks: int = 2
    keys: bool = True
    kinds: tuple[str, ...] = ()
    """Only these, where any are named; the others keep their numbers and are not sent."""
    probe_seconds: float = 5.0


@dataclass
class Findings:
    """What was sent and what went wrong."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    under_way: set[int] = field(default_factory=set)
    recent: set[int] = field(default_factory=set)
    sent: int = 0

    def begin(self, index: int) -> None:
        self.under_way.add(index)
        self.recent.add(index)

    def since_last_asked(self) -> list[int]:
        recent, self.recent = self.recent, set(self.under_way)
        return sorted(recent)

    def note(self, attempt: Attempt, answer: Answer, index: int) -> str | None:
        self.sent += 1
        word = str(answer.status) if answer.ending == "whole" else f"{answer.ending} {answer.status or ''}".strip()
        self.outcomes.setdefault(attempt.kind, Counter())[word] += 1
        found = problem(attempt, answer)
        if found is not None:
            self.problems[index] = found
        return found


class Run:
    def __init__(self, options: Options, server: HttpServer, folder: Path, console: Console) -> None:
        self.options = options
        self.findings = Findings()
        self._server = server
        self._folder = folder
        self._console = console
        self._port = int(server.url.rpartition(":")[2])
        headers = {"authorization": f"Bearer {KEY}"} if options.keys else {}
        self._http = httpx.Client(base_url=server.url, headers=headers, timeout=30.0, trust_env=False)
        self._maker = Maker(options.seed, options.requests, self._http.get("/openapi.json").json(), keys=options.keys)
        self.watch = Watch(
            self._port,
            server.processes,
            self.findings.since_last_asked,
            KEY if options.keys else None,
            options.probe_seconds,
        )
        self.memory: list[dict[Identity, int]] = []
        self._deadline = time.monotonic() + options.minutes * 60

    async def halves(self) -> None:
        """All requests, with a rest in the middle and at the end, to see what memory is kept."""
        await self._settle()
        self.watch.expected = watching.alive(self._server.processes())
        half = self.options.requests // 2
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self.watch.run())
            for indices in (range(half), range(half, self.options.requests)):
                await self._send_all(iter(indices))
                await self._settle()
                self.memory.append(await asyncio.to_thread(watching.memory_of, self.watch.expected))
            watch.cancel()

    async def _send_all(self, indices: Iterator[int]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.options.clients):
                tasks.create_task(self._client(indices))

    async def _client(self, indices: Iterator[int]) -> None:
        for index in indices:
            if time.monotonic() > self._deadline:
                return
            attempt = self._maker.attempt(index)
            if self.options.kinds and attempt.kind not in self.options.kinds:
                continue
            self.findings.begin(index)
            answer = await send(attempt, self._port)
            self.findings.under_way.discard(index)
            if found := self.findings.note(attempt, answer, index):
                self._show(index, attempt, answer, found)

    def _show(self, index: int, attempt: Attempt, answer: Answer, found: str) -> None:
        if len(self.findings.problems) > MOST_SAVED:
            return
        file = self._folder / f"seed-{self.options.seed}-request-{index}.json"
        save(attempt, file)
        said = answer.data.partition(b"\r\n\r\n")[2][:300].decode("utf-8", "replace")
        self._console.print(
            f"[bold red]{found}[/] for request {index} ({attempt.kind}) after {answer.seconds:.1f} s: {escape(said)}\n"
            f"  again: python -m tests.fuzz --replay {file}",
            highlight=False,
            soft_wrap=True,
        )

    async def _settle(self) -> None:
        """Until nothing is being worked on any more."""
        deadline = time.monotonic() + IDLE_SECONDS
        while time.monotonic() < deadline:
            try:
                if is_idle((await asyncio.to_thread(self._http.get, "/health")).json()):
                    return
            except (httpx.HTTPError, ValueError, KeyError):
                pass
            await asyncio.sleep(0.2)


@contextmanager
def served(options: Options) -> Iterator[HttpServer]:
    """A tiny random model with a template that knows tools, behind a key unless told otherwise."""
    from chorus.security.key_rules import key_hash

    with tempfile.TemporaryDirectory(prefix="chorus-fuzz-") as name:
        folder = Path(name)
        model = write_model(folder / "tiny-model")
        settings = folder / "chorus.json"
        settings.write_text(json.dumps(SETTINGS))
        keys = [{"id": "fuzz", "sha256": key_hash(KEY)}] if options.keys else []
        (folder / "keys.json").write_text(json.dumps({"keys": keys}))
        server = chorus(
            model,
            *("--config", str(settings), "--ranks", str(options.ranks), "--alias", MODEL_ID),
            # Whatever model it is asked to fetch: nobody outside is asked for it.
            environment={"CHORUS_KEYS_FILE": str(folder / "keys.json"), "HF_HUB_OFFLINE": "1"},
        )
        with server:
            yield server


def result_of(run: Run, left: list[str], started: str, seconds: float, load_before: float) -> Result:
    findings, watch, samples = run.findings, run.watch, Samples()
    samples.add("requests", "", "sent", findings.sent)
    samples.add("answers that must not be", "", "fuzz", len(findings.problems))
    samples.add("processes that ended", "", "fuzz", len(watch.ended))
    samples.add("probes that went wrong", "", "fuzz", len(watch.problems))
    samples.add("longest probe", "s", "fuzz", max(watch.probes, default=0.0))
    samples.add("processes left behind", "", "fuzz", len(left))
    before, after = run.memory
    for known in sorted(before.keys() & after.keys()):
        samples.add("USS after half", "MB", known.name, before[known] / 1e6)
        samples.add("USS at the end", "MB", known.name, after[known] / 1e6)
    samples.add("memory above 1.05 × + 20 MB", "MB", "fuzz", max(0.0, *watching.excess(before, after).values()) / 1e6)
    bounds = {
        "answers that must not be": 0,
        "processes that ended": 0,
        "probes that went wrong": 0,
        "longest probe": run.options.probe_seconds,
        "processes left behind": 0,
    }
    if run.options.requests >= 2 * WARM:
        bounds["memory above 1.05 × + 20 MB"] = 0
    goals = [Goal("requests", "sent", ">=", run.options.requests)]
    goals += [Goal(measure, "fuzz", "<=", bound) for measure, bound in bounds.items()]
    return Result(
        name="fuzz",
        about="whatever is sent, nothing ends, nothing leaks, everybody else is served",
        started=started,
        seconds=round(seconds, 1),
        machine=machine.facts(),
        load_before=load_before,
        load_after=machine.load_average(),
        settings=asdict(run.options),
        samples=samples,
        verdicts=tuple(report.judge(goal, samples) for goal in goals),
        notes=tuple(notes(run)),
    )


def notes(run: Run) -> Iterator[str]:
    yield from run.watch.ended[:MOST_SAVED]
    yield from run.watch.problems[:MOST_SAVED]
    for found, number in Counter(run.findings.problems.values()).most_common():
        indices = [index for index, problem in run.findings.problems.items() if problem == found]
        yield f"{number} × {found}: requests {indices[:20]}"


def outcomes_table(findings: Findings) -> Table:
    table = Table("kind", "requests", "outcomes")
    for kind, counter in sorted(findings.outcomes.items()):
        words = "  ".join(f"{word}: {number}" for word, number in counter.most_common())
        table.add_row(kind, str(counter.total()), words)
    return table


def fuzz(options: Options, folder: Path, console: Console) -> Result:
    started, begin, load_before = report.now(), report.clock(), machine.load_average()
    with served(options) as server:
        run = Run(options, server, folder, console)
        console.print(
            f"{options.requests} requests of seed {options.seed} to {server.name} at {server.url}", highlight=False
        )
        asyncio.run(run.halves())
        if run.watch.ended:
            console.print(server.log_tail(40), highlight=False, markup=False)
        left = server.stop()
    console.print(outcomes_table(run.findings))
    return result_of(run, left, started, report.clock() - begin, load_before)


def replay(file: Path, options: Options, console: Console) -> int:
    """Sends one saved request to a fresh server, and shows the answer and the server's log."""
    attempt = load(file)
    with served(options) as server:
        before = watching.alive(server.processes())
        answer = asyncio.run(send(attempt, int(server.url.rpartition(":")[2])))
        gone = before - watching.alive(server.processes())
        console.print(
            f"{answer.ending} after {answer.seconds:.2f} s", answer.data[:4000].decode("latin-1"), markup=False
        )
        console.print(server.log_tail(40), markup=False, highlight=False)
    found = problem(attempt, answer) or ", ".join(f"{known.name} ended" for known in sorted(gone))
    console.print(found or "nothing wrong with that", markup=False)
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=Options.requests, help=f"how many ({FULL})")
    parser.add_argument("--seed", type=int, default=Options.seed, help="what they follow from (1)")
    parser.add_argument("--minutes", type=float, default=Options.minutes, help="give up after these (90)")
    parser.add_argument("--clients", type=int, default=Options.clients, help="requests at once (6)")
    parser.add_argument("--ranks", type=int, default=Options.ranks, help="ranks to serve over (2)")
    parser.add_argument("--kinds", default="", help="only these, such as wire,mutated (all)")
    parser.add_argument("--no-keys", action="store_true", help="serve everybody")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="send one saved request again")
    parser.add_argument(
        "--failures", type=Path, default=ROOT / ".fuzz", help="where requests that failed are written (.fuzz)"
    )
    given = parser.parse_args()
    kinds = tuple(filter(None, given.kinds.split(",")))
    options = Options(given.requests, given.seed, given.minutes, given.clients, given.ranks, not given.no_keys, kinds)
    end_cleanly_when_told()
    keep_apart()
    console = Console()
    try:
        if given.replay:
            return replay(given.replay, options, console)
        result = fuzz(options, given.failures, console)
    except ServerFailed as error:
        console.print(f"[bold red]the fuzzing could not run:[/] {error}", highlight=False)
        return 1
    report.show(result, console)
    # A short run must not take the place of figures that somebody waited for.
    if options.requests >= FULL and options.keys:
        console.print(f"written to {report.write(result)}", highlight=False)
    return 0 if all(verdict.met for verdict in result.verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
