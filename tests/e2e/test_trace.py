"""`chorus trace` beside a real server of three ranks that is asked for something all the while."""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import traces
from tests.support.server import ChorusServer
from tests.support.sockets import short
from tests.support.tiny_model import write_tiny_model

numbers = itertools.count()
DEADLINE = 180
CLIENTS = 2
STEPS = 40
BUSY_SECONDS = 150
"""So long others may want the processors before a trace counts whatever it shows."""
EXPLAINED = 0.7
"""Of all waiting. Of the rest a part is the leader's word on its way: more of it where others want the processors."""


class Terminal:
    def __init__(self, server: ChorusServer, folder: Path, environment: dict[str, str]) -> None:
        self.server = server
        self.folder = folder
        self._environment = environment

    def start(self, *words: str) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CHORUS_")}
        return subprocess.Popen(
            [sys.executable, "-m", "chorus.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**inherited, "COLUMNS": "100", **self._environment},
        )

    def type(self, *words: str) -> tuple[str, str]:
        """What a command prints to stdout and stderr."""
        command = self.start(*words)
        shown, told = command.communicate(timeout=DEADLINE)
        assert command.returncode == 0, told
        return shown, told

    def trace(self, *words: str) -> tuple[dict[str, Any], traces.Written]:
        summary = json.loads(self.type("trace", "--json", *words)[0])
        return summary, traces.Written(json.loads((self.folder / summary["file"]).read_text()))

    def rank(self, number: int) -> dict[str, Any]:
        rank: dict[str, Any] = self.server.get("/cluster/status")["ranks"][number]
        return rank


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    folder = tmp_path_factory.mktemp("traced")
    environment = {"CHORUS_STATE": str(short(folder / "state"))}
    model = write_tiny_model(
        folder / "model",
        num_hidden_layers=6,
        hidden_size=512,
        intermediate_size=1536,
        vocab_size=512,
        max_position_embeddings=4096,
    )
    words = ["--ranks", "3", "--parallel", "pipeline", "--transport", "grpc"]
    with ChorusServer(model, words, folder, environment) as server:
        yield Terminal(server, folder, environment)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def asked(server: ChorusServer) -> Iterator[None]:
    """Somebody is answered for as long as this lasts."""
    over, answering = threading.Event(), threading.Semaphore(0)

    def ask(client: int) -> None:
        while not over.is_set():
            # Never the same: what is kept of a prompt would not be computed again.
            prompt = f"{next(numbers)} {client} " + "once upon a time " * 40
            body = {"prompt": prompt, "max_tokens": 24, "temperature": 0.8}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=DEADLINE)
            assert answer.status_code == 200, answer.text
            answering.release()

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        assert answering.acquire(timeout=DEADLINE)
        yield
    finally:
        over.set()
        for client in clients:
            client.join(DEADLINE)


@pytest.fixture(scope="module")
def recorded(terminal: Terminal) -> tuple[dict[str, Any], traces.Written]:
    """A trace under load: the first that was recorded while nobody else held up the leader's word, or else the last."""
    deadline = time.monotonic() + BUSY_SECONDS
    with asked(terminal.server):
        while True:
            found = terminal.trace("--steps", str(STEPS), "--seconds", "100", "-o", "load.json")
            if traces.explained(found[1]) >= EXPLAINED or time.monotonic() > deadline:
                return found


def test_every_wait_of_three_ranks_under_load_names_whom_it_is_for(
    recorded: tuple[dict[str, Any], traces.Written],
) -> None:
    summary, trace = recorded
    assert summary["steps"] >= STEPS
    assert list(trace.names) == [0, 1, 2]
    traces.is_whole(trace)
    share = traces.waits_are_for_whom_they_name(trace, EXPLAINED)
    taken = traces.nothing_is_taken_before_it_is_sent(trace)
    print(f"{share:.0%} of all waiting is explained; {taken} tensors seen")
    assert taken >= STEPS  # two boundaries, and a step at the edge may be cut
    # Activations flow towards the leader, its steps away from it.
    pairs = {(rank, wait["args"]["for_rank"]) for rank, wait in trace.waits()}
    assert {(0, 1), (1, 2), (2, 0)} <= pairs
    assert pairs <= {(0, 1), (1, 2), (2, 0), (1, 0)}


def test_a_trace_with_its_ranks_mixed_up_would_be_found_out(recorded: tuple[dict[str, Any], traces.Written]) -> None:
    """No rank that is wrongly named had sent what a wait ended with, also where no wait is for whoever waits.

    How much of the waiting is explained tells them apart too, but only on the whole: where three ranks take turns on
    two processors, one of them is often at work while another waits, whoever is named.
    """
    _, trace = recorded
    mixed = [trace.with_rows(dict(enumerate(order))) for order in itertools.permutations(range(3))][1:]
    # Who waits, and for whom, against the one that is neither.
    mixed.append(trace.naming({(rank, named): 3 - rank - named for rank, named in itertools.permutations(range(3), 2)}))
    told = [(traces.explained(each), traces.named_sent_it(each)) for each in mixed]
    print([f"{share:.0%}, {sent:.0%}" for share, sent in told])
    assert all(sent < 0.1 for _, sent in told), told
    assert statistics.mean(share for share, _ in told) < traces.explained(trace), told
    for each in mixed:
        with pytest.raises(AssertionError):
            traces.waits_are_for_whom_they_name(each, EXPLAINED)


def test_spans_say_which_step_they_are_of_and_what_its_batch_is(
    recorded: tuple[dict[str, Any], traces.Written],
) -> None:
    _, trace = recorded
    args = [span["args"] for spans in trace.spans.values() for span in spans if span["cat"] == "compute"]
    kinds = {found["kind"]: found for found in args if "kind" in found}
    assert {"prefill", "decode"} <= set(kinds)
    assert kinds["prefill"]["tokens"] > kinds["prefill"]["rows"]
    assert all(found["tokens"] == found["rows"] > 0 for found in args if found.get("kind") == "decode")
    # One that was under way when recording began, or ended, may have told its bytes to nobody.
    sent = [s["args"] for s in trace.spans[2] if s["cat"] == "transport" and "bytes" in s["args"]]
    assert sent
    assert all(found["to_rank"] == 1 and found["bytes"] > 0 for found in sent)


def test_an_idle_server_has_nothing_to_show_and_says_so(terminal: Terminal) -> None:
    shown, told = terminal.type("trace", "--seconds", "3", "-o", "idle.json")
    assert "nothing was asked of it meanwhile" in told
    assert "idle.json: open it at https://ui.perfetto.dev" in shown
    assert "clocks agree within" in shown
    rows = [line.split("│") for line in shown.splitlines() if line.startswith("│")]
    assert [row[1].strip() for row in rows] == ["0", "1", "2"]
    assert all(int(row[-2].strip().removesuffix("%")) >= 90 for row in rows), rows
    trace = traces.Written(json.loads((terminal.folder / "idle.json").read_text()))
    traces.is_whole(trace)
    assert {span["cat"] for spans in trace.spans.values() for span in spans} <= {"idle", "schedule"}


def test_one_trace_at_a_time_and_whoever_gives_up_makes_room_for_the_next(terminal: Terminal) -> None:
    first = terminal.start("trace", "--steps", "10000", "--seconds", "250", "-o", "never.json")
    try:
        eventually(lambda: "recording 10000 steps" in terminal.server.log)
        second = terminal.start("trace")
        refused = second.communicate(timeout=DEADLINE)[1]
        assert second.returncode == 1
        assert "another trace is being recorded" in refused
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=DEADLINE)
    terminal.trace("--seconds", "0.1")
    assert not (terminal.folder / "never.json").exists()


def test_the_status_counts_each_ranks_seconds_by_phase(terminal: Terminal) -> None:
    before = [terminal.rank(number) for number in range(3)]
    terminal.server.complete("hello " * 50, max_tokens=30)

    def counts_more(old: dict[str, Any]) -> bool:
        new = terminal.rank(old["rank"])["phases"]
        return all(new[name] > old["phases"][name] for name in ("compute", "wait"))

    # Followers tell it once a second, and when they tick.
    eventually(lambda: all(map(counts_more, before)))
    after = [terminal.rank(number) for number in range(3)]
    for old, new in zip(before, after, strict=True):
        assert list(new["phases"]) == ["compute", "wait", "transport", "sampling", "schedule", "idle"]
        assert all(new["phases"][name] >= seconds for name, seconds in old["phases"].items())
    assert set(after[0]["waited_for"]) == {"1"}
    assert set(after[2]["waited_for"]) == {"0"}
    assert after[0]["phases"]["sampling"] > before[0]["phases"]["sampling"]
    assert not after[1]["phases"]["sampling"]


def test_a_model_that_is_not_there_is_named(terminal: Terminal) -> None:
    command = terminal.start("trace", "--model", "modle")
    told = command.communicate(timeout=DEADLINE)[1]
    assert command.returncode == 1
    assert "no model is called modle: did you mean model?" in told
