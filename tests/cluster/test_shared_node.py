"""Several models on one node: its agent books each rank, and no group disturbs another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from chorus.platform.memory.amounts import available_memory
from tests.cluster.harness import Cluster, Process, Stream, cluster, complete, eventually, url_of
from tests.cluster.test_agents import ranks_of
from tests.support.alone import text_alone
from tests.support.own_memory import own_memory
from tests.support.tiny_model import write_tiny_model

PROMPT = "The quick brown fox"
TOKENS, LONG = 200, 600
CYCLES = int(os.environ.get("CHORUS_TEST_CYCLES", "2"))


@dataclass
class Shared:
    nodes: Cluster
    agent: Process
    port: int
    models: dict[str, Path]
    texts: dict[str, str]
    """What each model says alone."""

    def serve(self, name: str, *words: str, **variables: str) -> Process:
        return self.nodes.serve(self.models[name], ["--peer", f"127.0.0.1:{self.port}", *words], **variables)

    def bookings(self) -> dict[str, int]:
        (file,) = (self.nodes.folder / "state-node").glob("ledger-*.json")
        return {booking["what"]: booking["amount"] for booking in json.loads(file.read_text())["bookings"]}

    def is_empty(self) -> bool:
        return bool(eventually(lambda: not ranks_of(self.agent) and not self.bookings(), 60))

    def held(self) -> int:
        """By the agent and its ranks."""
        return own_memory([psutil.Process(self.agent.process.pid), *ranks_of(self.agent)])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    models = {
        name: write_tiny_model(folder / name, "llama", vocab_size=512, max_position_embeddings=4096, seed=seed)
        for seed, name in enumerate(("one", "two"))
    }
    texts = {name: text_alone(model, PROMPT, TOKENS) for name, model in models.items()}
    assert texts["one"] != texts["two"]
    with cluster(folder / "cluster") as nodes:
        agent, port = nodes.agent("node")
        agent.wait_for("waiting on")
        yield Shared(nodes, agent, port, models, texts)


def test_two_groups_at_once_say_what_each_says_alone_and_end_alone(shared: Shared) -> None:
    first = shared.serve("one")
    url = url_of(first)
    long = Stream(url, PROMPT, max_tokens=TOKENS)
    second = shared.serve("two")
    other = url_of(second)
    assert long.text() == shared.texts["one"]
    streams = {name: [Stream(where, PROMPT, max_tokens=TOKENS) for _ in range(3)] for name, where in pairs(url, other)}
    for name, those in streams.items():
        assert [stream.text() for stream in those] == [shared.texts[name]] * 3
    assert len(ranks_of(shared.agent)) == 2
    told = {rank.environ()["CHORUS_BOOKED_BYTES"] for rank in ranks_of(shared.agent)}
    assert told == set(map(str, shared.bookings().values()))
    # Longer than the others: it must not be at its end when the other group is.
    asked: dict[str, Any] = {"max_tokens": LONG, "logit_bias": {"2": -100}}
    expected = complete(other, PROMPT, **asked)
    last = Stream(other, PROMPT, **asked)
    last.wait_for(3)
    assert first.stop() == 0, first.log
    assert last.text() == expected
    assert complete(other, PROMPT, max_tokens=TOKENS) == shared.texts["two"]
    assert second.stop() == 0, second.log
    assert shared.is_empty(), shared.agent.log


def test_a_plan_is_made_with_what_the_ledger_leaves(shared: Shared) -> None:
    # Each takes more than half of what there is, and hardly any of it: so what is free tells nothing.
    large = {"CHORUS_ENGINE__RESERVE_MB": str(available_memory() * 6 // 10 // 2**20), "CHORUS_CACHE__MEMORY": "64MB"}
    first = shared.serve("one", **large)
    url = url_of(first)
    stream = Stream(url, PROMPT, max_tokens=TOKENS)
    second = shared.serve("two", **large)
    assert second.wait() == 1
    assert "more memory" in second.log, second.log
    assert "Traceback" not in second.log
    assert stream.text() == complete(url, PROMPT, max_tokens=TOKENS) == shared.texts["one"]
    assert first.stop() == 0
    assert shared.is_empty(), shared.agent.log


@pytest.mark.linux("PSS")
def test_the_memory_of_a_node_comes_back_after_every_model(shared: Shared) -> None:
    before = shared.held()
    for cycle in range(CYCLES):
        name = ("one", "two")[cycle % 2]
        server = shared.serve(name)
        assert complete(url_of(server), PROMPT, max_tokens=TOKENS) == shared.texts[name]
        assert server.stop() == 0, server.log
        assert shared.is_empty(), shared.agent.log
        assert eventually(lambda: shared.held() - before < 50 << 20), (shared.held(), before)


def pairs(one: str, two: str) -> tuple[tuple[str, str], ...]:
    return ("one", one), ("two", two)
