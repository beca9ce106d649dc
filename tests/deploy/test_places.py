"""Workers of a hostfile are small agents: each leader has a process of its own there, and nobody else's."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from chorus.messages.proto import rank_pb2, rank_pb2_grpc
from chorus.platform.memory.amounts import available_memory
from tests.cluster.harness import Cluster, Process, Stream, cluster, complete, eventually, url_of
from tests.cluster.test_agents import leader_of, ranks_of
from tests.support.alone import text_alone
from tests.support.own_memory import own_memory
from tests.support.ports import listening_port
from tests.support.tiny_model import write_store_entry, write_tiny_model

PROMPT = "The quick brown fox"
TOKENS = 200
LONG = {"max_tokens": 1000, "logit_bias": {"2": -100}}
"""Of a stream that must still run when something is done to it, however late the test gets to that."""
SIZES = {"vocab_size": 512, "num_hidden_layers": 4, "max_position_embeddings": 2048}
LEASE_SECONDS = 30
"""A leader that is started again on a busy machine comes back in less."""
CYCLES = int(os.environ.get("CHORUS_TEST_CYCLES", "3"))


@dataclass
class Site:
    """One worker, and leaders that come and go, each with a hostfile of its own or with a shared one."""

    nodes: Cluster
    cache: Path
    worker: Process
    address: str
    texts: dict[str, str]
    """What each model says alone."""
    long_texts: dict[str, str] = field(default_factory=dict)

    def long_text(self, url: str, model: str) -> str:
        """What it says to who asks for a long answer while nobody else asks for anything."""
        if model not in self.long_texts:
            told = complete(url, PROMPT, model=model, **LONG)
            assert told.startswith(self.texts[model].rstrip("\ufffd"))
            self.long_texts[model] = told
        return self.long_texts[model]

    def lead(self, model: str, *words: str, **variables: str) -> Process:
        hosts = self.nodes.folder / f"hosts-{model}.json"
        hosts.write_text(json.dumps([f"127.0.0.1:{listening_port()}", self.address]))
        return self.lead_from(hosts, model, *words, **variables)

    def lead_from(self, hosts: Path, model: str, *words: str, **variables: str) -> Process:
        command = ["worker", "mlx-distributed", "--hostfile", str(hosts), "--rank", "0", "--model", model]
        command += ["--addr", f"localhost:{listening_port()}", "--threads", "1", *words]
        return self.nodes.chorus(f"leader-{model}", *command, CHORUS_CACHE=str(self.cache), **variables)

    def ranks(self) -> list[psutil.Process]:
        return ranks_of(self.worker)

    def booked(self) -> list[str]:
        """The models that memory is booked for, whether or not anybody has looked who of them still lives."""
        (file,) = self.nodes.state.glob("ledger-*.json")
        return [booking["what"] for booking in json.loads(file.read_text())["bookings"]]

    def is_empty(self) -> bool:
        return bool(eventually(lambda: not self.ranks() and not self.booked(), 4 * LEASE_SECONDS))

    def held(self) -> int:
        """By the worker and all that it has started."""
        return own_memory([psutil.Process(self.worker.process.pid), *self.ranks()])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    texts = {}
    for number, name in enumerate(("one", "two")):
        model = write_tiny_model(folder / name, "llama", seed=number, **SIZES)
        write_store_entry(folder / "cache", name, model)
        texts[name] = text_alone(model, PROMPT, TOKENS)
    assert texts["one"] != texts["two"]
    with cluster(folder / "cluster") as nodes:
        address = f"127.0.0.1:{listening_port()}"
        hosts = nodes.folder / "hosts.json"
        hosts.write_text(json.dumps([f"127.0.0.1:{listening_port()}", address]))
        words = ["worker", "mlx-distributed", "--hostfile", str(hosts), "--rank", "1", "--threads", "1"]
        settings = {"CHORUS_CACHE": str(folder / "cache"), "CHORUS_WATCH__LEASE_SECONDS": str(LEASE_SECONDS)}
        worker = nodes.chorus("worker", *words, **settings)
        worker.wait_for(f"rank 1 at {address} waits for its leader")
        yield Site(nodes, folder / "cache", worker, address, texts)


@pytest.mark.linux("PSS")
def test_leaders_that_come_one_after_the_other_leave_nothing_behind(site: Site) -> None:
    before = site.held()
    for cycle in range(CYCLES):
        name, transport = (("one", "grpc"), ("two", "ring"), ("two", "grpc"))[cycle % 3]
        leader = site.lead(name, "--backend", transport)
        assert complete(url_of(leader), max_tokens=TOKENS) == site.texts[name]
        assert site.booked() == [name]
        assert leader.stop() == 0, leader.log
        assert site.is_empty(), site.worker.log
        assert eventually(lambda: site.held() - before < 50 << 20), (site.held(), before)


@pytest.mark.parametrize("transport", ["grpc", "ring"])
def test_two_leaders_at_once_each_get_their_own_texts(site: Site, transport: str) -> None:
    """Both from one hostfile, whose port for rank 0 only one of them can have."""
    hosts = site.nodes.folder / "hosts.json"
    first = site.lead_from(hosts, "one", "--backend", transport)
    url = url_of(first)
    alone = site.long_text(url, "one")
    long = Stream(url, PROMPT, **LONG)
    long.wait_for(3)
    second = site.lead_from(hosts, "two", "--backend", transport)
    other = url_of(second)
    assert long.text() == alone
    streams = {"one": [], "two": []}
    for _ in range(3):
        for name, where in (("one", url), ("two", other)):
            streams[name].append(Stream(where, PROMPT, max_tokens=TOKENS))
    for name, those in streams.items():
        assert [stream.text() for stream in those] == [site.texts[name]] * 3
    assert sorted(site.booked()) == ["one", "two"]
    assert len(site.ranks()) == 2
    alone = site.long_text(other, "two")
    last = Stream(other, PROMPT, **LONG)
    last.wait_for(3)
    assert first.stop() == 0, first.log
    assert last.text() == alone
    assert second.stop() == 0, second.log
    assert site.is_empty(), site.worker.log


def test_a_leader_that_has_no_room_beside_another_is_told_the_figures_and_disturbs_nobody(site: Site) -> None:
    # Each takes more than half of what there is.
    large = {"CHORUS_ENGINE__RESERVE_MB": str(available_memory() * 6 // 10 // 2**20), "CHORUS_CACHE__MEMORY": "64MB"}
    first = site.lead("one", "--backend", "grpc", **large)
    url = url_of(first)
    stream = Stream(url, PROMPT, max_tokens=TOKENS)
    second = site.lead("two", "--backend", "grpc", **large)
    assert second.wait() == 1
    told = " ".join(second.log.split())
    assert re.search(r"refused the leader: no room for two: it needs [\d.]+ GiB and [\d.]+ [GM]iB are left", told), told
    assert re.search(r"[\d.]+ GiB of [\d.]+ GiB are booked by one \([\d.]+ GiB\): unload one of them", told), told
    assert "Traceback" not in second.log
    assert stream.text() == complete(url, max_tokens=TOKENS) == site.texts["one"]
    (rank,) = site.ranks()
    assert rank.environ()["CHORUS_BOOKED_BYTES"].isdecimal()
    # One that has left keeps its place for a while, but not when somebody else needs the room.
    kill_all(first)
    third = site.lead("two", "--backend", "grpc", **large)
    assert complete(url_of(third), max_tokens=TOKENS) == site.texts["two"]
    assert site.booked() == ["two"]
    assert third.stop() == 0
    assert site.is_empty(), site.worker.log


def test_one_server_leads_several_models_each_with_its_own_process_at_the_worker(site: Site) -> None:
    leader = site.lead("one", "--model", "two", "--backend", "grpc")
    url = url_of(leader)
    streams = [(name, Stream(url, PROMPT, model=name, max_tokens=TOKENS)) for name in ("one", "two")]
    assert all(stream.text() == site.texts[name] for name, stream in streams)
    assert len(site.ranks()) == 2
    alone = site.long_text(url, "two")
    last = Stream(url, PROMPT, model="two", **LONG)
    last.wait_for(3)
    assert httpx.post(f"{url}/models/unload", json={"model": "one"}, timeout=60).status_code == 200
    assert eventually(lambda: set(site.booked()) == {"two"} and len(site.ranks()) == 1), site.worker.log
    assert last.text() == alone
    assert leader.stop() == 0, leader.log
    assert site.is_empty(), site.worker.log


class Full:
    """A server with two models of which its worker has room for one, and its own machine for both."""

    def __init__(self, site: Site, on_full: str) -> None:
        hosts = site.nodes.folder / "hosts-full.json"
        hosts.write_text(json.dumps([f"127.0.0.1:{listening_port()}", site.address]))
        command = ["worker", "mlx-distributed", "--hostfile", str(hosts), "--rank", "0", "--backend", "grpc"]
        command += ["--model", "one", "--model", "two", "--addr", f"localhost:{listening_port()}", "--threads", "1"]
        settings = {
            "CHORUS_CACHE": str(site.cache),
            "CHORUS_ENGINE__RESERVE_MB": str(available_memory() * 6 // 10 // 2**20),
            "CHORUS_CACHE__MEMORY": "64MB",
            "CHORUS_LOAD__MEMORY": "100000GB",
            "CHORUS_LOAD__MIN_LOADED_SECONDS": "0",
            "CHORUS_LOAD__ON_FULL": on_full,
        }
        # Another state folder: to the worker it is another machine.
        self.leader = site.nodes.chorus("full", *command, state=site.nodes.folder / "state-full", **settings)
        self.site = site
        self.url = ""

    def row(self, model: str) -> dict[str, object]:
        rows = httpx.get(f"{self.url}/cluster/status", timeout=60).json()["models"]
        return next(dict(row) for row in rows if row["id"] == model)

    def says(self, model: str) -> bool:
        return complete(self.url, PROMPT, model=model, max_tokens=TOKENS) == self.site.texts[model]

    def __enter__(self) -> Full:
        self.url = url_of(self.leader)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.leader.stop() == 0, self.leader.log
        assert self.site.is_empty(), self.site.worker.log


def test_a_full_worker_has_the_idle_model_that_holds_room_there_make_it(site: Site) -> None:
    before = len(site.worker.log)
    with Full(site, "swap") as full:
        for model in ("one", "two", "one"):
            assert full.says(model), full.leader.log
            assert site.booked() == [model]
            assert len(site.ranks()) == 1
    assert "is refused" not in site.worker.log[before:], "it was asked before anything was loaded"


def test_a_full_worker_is_waited_for_where_the_settings_say_so(site: Site) -> None:
    with Full(site, "wait") as full:
        assert full.says("one")
        waiting = Stream(full.url, PROMPT, model="two", max_tokens=TOKENS)
        assert eventually(lambda: "are needed" in str(full.row("two")["detail"])), full.leader.log
        row = full.row("two")
        assert row["state"] == "waiting"
        figures = rf"[\d.]+ GiB are needed on {site.address} and [\d.]+ .iB are left"
        assert re.search(figures, str(row["detail"])), row
        assert (site.booked(), full.row("one")["state"]) == (["one"], "ready")
        assert httpx.post(f"{full.url}/models/unload", json={"model": "one"}, timeout=60).status_code == 200
        waiting.join(180)
        said = "".join(event["choices"][0]["text"] for event in waiting.events if event.get("choices"))
        assert said == site.texts["two"], waiting.events[:3]


def test_a_full_worker_is_a_refusal_with_its_figures_where_the_settings_say_so(site: Site) -> None:
    with Full(site, "refuse") as full:
        assert full.says("one")
        body = {"model": "two", "prompt": PROMPT, "max_tokens": 1}
        refused = httpx.post(f"{full.url}/v1/completions", json=body, timeout=60)
        assert refused.status_code == 503
        figures = rf"needs [\d.]+ GiB on {site.address}, and [\d.]+ .iB of [\d.]+ GiB are left, taken by one [\d.]+ GiB"
        assert re.search(f"no room for two: it {figures}", refused.text), refused.text
        assert (site.booked(), full.says("one")) == (["one"], True)


def test_a_leader_that_is_started_again_finds_its_rank_and_one_that_stays_away_loses_it(site: Site) -> None:
    leader = site.lead("one", "--backend", "grpc")
    url = url_of(leader)
    assert complete(url)
    (rank,) = site.ranks()
    leader_of(leader).kill()
    assert complete(url, max_tokens=TOKENS) == site.texts["one"]
    assert site.ranks() == [rank], site.worker.log
    kill_all(leader)
    site.worker.wait_for("the leader of one is gone: its rank 1 ends", 4 * LEASE_SECONDS)
    assert site.is_empty(), site.worker.log


def test_nobody_is_served_without_a_place_or_from_anothers(site: Site) -> None:
    with place(site, "mine") as (mine, _), place(site, "yours") as (yours, _):
        assert mine != yours
        assert "has asked for none" in load(site.address, "mine")
        assert "was started for another leader" in load(yours, "mine")
        with place(site, "mine") as (again, _):
            assert again == mine
        with place(site, "mine", fresh=True) as (new, _):
            assert new != mine
    assert site.is_empty(), site.worker.log


def test_a_place_needs_the_name_of_a_group_and_there_are_only_so_many(site: Site) -> None:
    with pytest.raises(grpc.RpcError, match="which group"), place(site, ""):
        pass
    assert site.is_empty()


@contextlib.contextmanager
def place(site: Site, group: str, fresh: bool = False) -> Iterator[tuple[str, grpc.Call]]:
    with grpc.insecure_channel(site.address) as channel:
        wanted = rank_pb2.PlaceRequest(group=group, model="one", needs=1 << 20, fresh=fresh)
        call = rank_pb2_grpc.RankStub(channel).Place(wanted)
        yield f"127.0.0.1:{next(call).port}", call


def load(address: str, group: str) -> str:
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
        list(rank_pb2_grpc.RankStub(channel).Load(rank_pb2.LoadRequest(group=group, model="one"), timeout=60))
    return str(refused.value.details())


def kill_all(leader: Process) -> None:
    """As a machine goes that loses its power."""
    for process in (psutil.Process(leader.process.pid), *leader.children()):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
