"""Several models of one server over the same nodes: each has ranks of its own there, kept, moved and ended alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from chorus.platform.memory.amounts import available_memory
from tests.cluster.harness import Cluster, Process, Stream, cluster, complete, eventually, free_block, url_of
from tests.cluster.test_agents import ranks_of
from tests.support.alone import text_alone
from tests.support.own_memory import own_memory
from tests.support.tiny_model import write_tiny_model

PROMPT = "The quick brown fox"
TOKENS = 120
LONG: dict[str, Any] = {"max_tokens": 800, "logit_bias": {"2": -100}}
"""Of a stream that must still run when something is done to it, however late the test gets to that."""
NAMES = ("coder", "talker")
CYCLES = int(os.environ.get("CHORUS_TEST_CYCLES", "2"))
MORE_THAN_THERE_IS = 1 << 30
"""Of memory, in MB."""


@dataclass
class Running:
    """A server with its models over two nodes; each test leaves all of it as it was."""

    nodes: Cluster
    agents: dict[str, Process]
    server: Process
    url: str
    texts: dict[str, str]
    """What each model says alone."""

    def stream(self, model: str) -> Stream:
        return Stream(self.url, PROMPT, model=model, max_tokens=TOKENS)

    def text(self, model: str) -> str:
        return complete(self.url, PROMPT, model=model, max_tokens=TOKENS)

    def status(self, model: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}/cluster/status", params={"model": model}, timeout=60)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def row(self, model: str) -> dict[str, Any]:
        return next(dict(row) for row in self.status(model)["models"] if row["id"] == model)

    def ask(self, what: str, model: str) -> httpx.Response:
        return httpx.post(f"{self.url}/models/{what}", json={"model": model}, timeout=120)

    def load(self, model: str) -> None:
        assert self.ask("load", model).status_code in (200, 202)
        assert eventually(lambda: self.row(model)["state"] == "ready"), self.server.log

    def unload(self, model: str) -> None:
        assert self.ask("unload", model).status_code == 200
        assert eventually(lambda: self.row(model)["state"] == "unloaded"), self.server.log

    def booked_at(self, node: str) -> list[str]:
        (file,) = (self.nodes.folder / f"state-{node}").glob("ledger-*.json")
        return sorted(Path(booking["what"]).name for booking in json.loads(file.read_text())["bookings"])

    def held(self) -> int:
        """By the server, the agents and all their processes."""
        commands = (self.server, *self.agents.values())
        return sum(own_memory([psutil.Process(each.process.pid), *each.children()]) for each in commands)

    def nodes_of(self, model: str) -> list[str]:
        return [rank["node"] for rank in self.status(model)["ranks"][1:]]

    def pids_of(self, model: str, node: str) -> list[int]:
        """Of its ranks there, as the node last told."""
        told = next(each for each in self.status(model)["nodes"] if each["name"] == node)
        return [rank["pid"] for rank in told["ranks"] if rank["current"] and rank["running"]]

    def rank_of(self, model: str, node: str) -> psutil.Process:
        (pid,) = self.pids_of(model, node)
        return psutil.Process(pid)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("several")
    sizes = {"vocab_size": 512, "max_position_embeddings": 4096}
    models = {
        name: write_tiny_model(folder / name, "llama", seed=seed, **sizes)
        for seed, name in enumerate((*NAMES, "near", "lost", "huge"))
    }
    texts = {name: text_alone(models[name], PROMPT, TOKENS) for name in (*NAMES, "near")}
    assert len(set(texts.values())) == 3
    entries: list[dict[str, Any]] = [{"source": str(models[name]), "preload": True} for name in NAMES]
    entries += [{"source": str(models["near"]), "nodes": ["two"]}, {"source": str(models["lost"]), "nodes": ["tow"]}]
    entries += [{"source": str(models["huge"]), "engine": {"reserve_mb": MORE_THAN_THERE_IS}}]
    (folder / "chorus.json").write_text(json.dumps({"models": entries}))
    with cluster(folder / "cluster") as nodes:
        ports = {"one": free_block(), "two": free_block()}
        peers = [word for port in ports.values() for word in ("--peer", f"127.0.0.1:{port}")]
        command = ["serve", "--cluster", "-c", str(folder / "chorus.json"), "--port", "0", "--listen", "127.0.0.1:0"]
        server = nodes.run("coordinator", ["-m", "chorus.cli", *command, *peers], nodes.state)
        agents = {name: nodes.agent(name, port=port)[0] for name, port in ports.items()}
        yield Running(nodes, agents, server, url_of(server), texts)


def test_models_over_the_same_nodes_say_what_each_says_alone(running: Running) -> None:
    streams = [(name, running.stream(name)) for _ in range(2) for name in NAMES]
    assert all(stream.text() == running.texts[name] for name, stream in streams)
    for name in NAMES:
        told = running.status(name)
        assert [rank["rank"] for rank in told["ranks"]] == [0, 1, 2]
        assert sorted(running.nodes_of(name)) == ["one", "two"]
        assert told["plan"]["ranks"]
        row = running.row(name)
        assert (row["ranks"], row["nodes"][1:]) == (3, [rank["node"] for rank in told["ranks"][1:]])
        assert row["booked_bytes"] > 0
    for node, agent in running.agents.items():
        assert running.booked_at(node) == list(NAMES)
        assert len(ranks_of(agent)) == len(NAMES)


def test_a_killed_rank_of_one_model_is_replaced_and_the_other_notices_nothing(
    running: Running, record_property: Callable[[str, object], None]
) -> None:
    calm = running.stream("coder")
    assert calm.text() == running.texts["coder"]
    kept, lost = running.rank_of("coder", "one"), running.rank_of("talker", "one")
    long = {"model": "talker", **LONG}
    expected = complete(running.url, PROMPT, **long)
    hit, other = Stream(running.url, PROMPT, **long), running.stream("coder")
    hit.wait_for(3)
    lost.kill()
    assert hit.text() == expected
    assert other.text() == running.texts["coder"]
    assert running.rank_of("coder", "one") == kept
    # What is told of nodes is a little older than what their ranks say.
    assert eventually(lambda: running.pids_of("talker", "one") not in ([], [lost.pid])), running.server.log
    assert running.rank_of("talker", "one") != lost
    assert running.text("talker") == running.texts["talker"]
    record_property("largest gap before", calm.longest_gap)
    record_property("largest gap of the other model", other.longest_gap)


def test_unloading_gives_every_nodes_memory_back_and_others_go_on(running: Running) -> None:
    other = running.stream("coder")
    running.unload("talker")
    assert eventually(lambda: all(running.booked_at(node) == ["coder"] for node in running.agents))
    assert all(len(ranks_of(agent)) == 1 for agent in running.agents.values())
    assert other.text() == running.texts["coder"]
    assert running.text("talker") == running.texts["talker"]  # it is loaded when it is asked for


@pytest.mark.system
def test_a_model_uses_only_the_nodes_that_its_entry_names(running: Running) -> None:
    assert running.text("near") == running.texts["near"]
    assert eventually(lambda: running.nodes_of("near") == ["two"])
    assert running.booked_at("one") == list(NAMES)
    running.unload("near")
    refused = httpx.post(
        f"{running.url}/v1/completions", json={"model": "lost", "prompt": PROMPT, "max_tokens": 1}, timeout=60
    )
    assert refused.status_code == 503
    assert "there is no node 'tow'; did you mean two?" in refused.text


def test_a_model_that_fits_on_no_nodes_is_refused_with_the_figures_and_others_serve(running: Running) -> None:
    stream = running.stream("coder")
    running.ask("load", "huge")
    assert eventually(lambda: running.row("huge")["state"] == "failed"), running.server.log
    told = running.row("huge")["detail"]
    assert "no room for huge: it needs" in told
    assert "are left, taken by coder" in told
    assert stream.text() == running.texts["coder"]
    assert running.text("talker") == running.texts["talker"]


@pytest.mark.system
@pytest.mark.linux("PSS")
def test_the_memory_of_all_machines_comes_back_after_every_unload(running: Running) -> None:
    for name in NAMES:
        running.unload(name)
    before = running.held()
    for _ in range(CYCLES):
        assert running.text("talker") == running.texts["talker"]
        running.unload("talker")
        assert all(not ranks_of(agent) for agent in running.agents.values())
        assert eventually(lambda: running.held() - before < 50 << 20), (running.held(), before)
    for name in NAMES:
        running.load(name)


@pytest.mark.system
def test_a_model_that_does_not_fit_beside_the_others_takes_the_place_of_one_of_them(tmp_path: Path) -> None:
    names = ("first", "second")
    models = [write_tiny_model(tmp_path / name, "llama", vocab_size=512, seed=seed) for seed, name in enumerate(names)]
    texts = [text_alone(model, PROMPT, 20) for model in models]
    reserve = available_memory() * 6 // 10 // 2**20  # more than half of what each machine has to share
    settings = {"load": {"min_loaded_seconds": 0}, "engine": {"reserve_mb": reserve}, "cache": {"memory": "64MB"}}
    (tmp_path / "chorus.json").write_text(json.dumps({"models": [str(model) for model in models], **settings}))
    with cluster(tmp_path / "cluster") as nodes:
        port = free_block()
        command = ["serve", "--cluster", "-c", str(tmp_path / "chorus.json"), "--port", "0", "--listen", "127.0.0.1:0"]
        command += ["--peer", f"127.0.0.1:{port}"]
        server = nodes.run("coordinator", ["-m", "chorus.cli", *command], nodes.state)
        agent, _ = nodes.agent("node", port=port)
        url = url_of(server)
        for _ in range(2):
            for name, text in zip(names, texts, strict=True):
                assert complete(url, PROMPT, model=name, max_tokens=20) == text
                assert len(ranks_of(agent)) == 1
        assert server.stop() == 0, server.log


@pytest.mark.system
def test_only_a_model_on_the_node_that_lacks_room_makes_room_though_another_is_idle_for_longer(tmp_path: Path) -> None:
    places = {"far": "one", "near": "two", "new": "two"}
    models = {
        name: write_tiny_model(tmp_path / name, "llama", vocab_size=512, seed=seed) for seed, name in enumerate(places)
    }
    text = text_alone(models["new"], PROMPT, 20)
    settings = {
        "models": [{"source": str(models[name]), "nodes": [node]} for name, node in places.items()],
        "load": {"min_loaded_seconds": 0, "memory": "100000GB"},  # this machine has room for all of them
        "engine": {"reserve_mb": available_memory() * 6 // 10 // 2**20},  # a node for one
        "cache": {"memory": "64MB"},
    }
    (tmp_path / "chorus.json").write_text(json.dumps(settings))
    with cluster(tmp_path / "cluster") as nodes:
        ports = {"one": free_block(), "two": free_block()}
        peers = [word for port in ports.values() for word in ("--peer", f"127.0.0.1:{port}")]
        command = ["serve", "--cluster", "-c", str(tmp_path / "chorus.json"), "--port", "0", "--listen", "127.0.0.1:0"]
        server = nodes.run("coordinator", ["-m", "chorus.cli", *command, *peers], nodes.state)
        agents = {name: nodes.agent(name, port=port)[0] for name, port in ports.items()}
        running = Running(nodes, agents, server, url_of(server), {})
        for name in ("far", "near"):
            assert complete(running.url, PROMPT, model=name, max_tokens=20)
        (kept,) = ranks_of(agents["one"])
        assert complete(running.url, PROMPT, model="new", max_tokens=20) == text
        assert [running.row(name)["state"] for name in places] == ["ready", "unloaded", "ready"]
        assert (running.booked_at("one"), running.booked_at("two")) == (["far"], ["new"])
        assert ranks_of(agents["one"]) == [kept]
        assert server.stop() == 0, server.log


@pytest.mark.system
def test_every_model_leaves_a_node_that_drains_and_is_back_with_a_new_plan(running: Running) -> None:
    expected = {name: complete(running.url, PROMPT, model=name, **LONG) for name in NAMES}
    assert all(expected[name].startswith(running.texts[name].rstrip("\ufffd")) for name in NAMES)
    streams = {name: Stream(running.url, PROMPT, model=name, **LONG) for name in NAMES}
    for stream in streams.values():
        stream.wait_for(3)
    drain = running.nodes.chorus("drain", "drain", "one")
    assert drain.wait() == 0, drain.log
    assert {name: stream.text() for name, stream in streams.items()} == expected
    assert eventually(lambda: all(running.nodes_of(name) == ["two"] for name in NAMES))
    assert eventually(lambda: all(running.row(name)["nodes"][1:] == ["two"] for name in NAMES))
    assert running.booked_at("one") == []
    undo = running.nodes.chorus("undo", "drain", "--undo", "one")
    assert undo.wait() == 0, undo.log
    replan = running.nodes.chorus("replan", "replan")
    assert replan.wait() == 0, replan.log
    assert all(f"{name}: this machine with" in replan.log for name in NAMES), replan.log
    assert eventually(lambda: all(len(running.nodes_of(name)) == 2 for name in NAMES))
    assert [running.text(name) for name in NAMES] == [running.texts[name] for name in NAMES]
