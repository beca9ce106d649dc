"""A cluster of real processes on loopback: joining, serving, losing, coming back."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from chorus.telemetry import journal
from tests.cluster.harness import (
    START_SECONDS,
    Cluster,
    Process,
    Stream,
    cluster,
    complete,
    eventually,
    free_block,
    url_of,
)
from tests.support.scrape import scrape
from tests.support.server import answered
from tests.support.server import running as those_running

LONG: dict[str, Any] = {"max_tokens": 1000, "logit_bias": {"2": -100}}
"""Of a stream that must still run when something is done to it, however late the test gets to that."""
DRAINS, REPLANNED, LOST = ("node_drains", "one"), ("replanned", ""), ("node_lost", "two")


@dataclass
class Running:
    """Two nodes and their coordinator, which each test leaves serving or is the last to use."""

    nodes: Cluster
    port: int
    one: Process
    two: Process
    server: Process
    url: str
    text: str
    formed: int = 1

    def serve_with_one_node(self, model: Path, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.server = self.nodes.serve(model, ["--peer", f"127.0.0.1:{self.port}"])

        def serves() -> bool:
            meanwhile()
            return "ready  " in self.server.log

        assert eventually(serves, START_SECONDS), self.server.log
        self.url, self.formed = url_of(self.server), 1

    def forms_again(self) -> bool:
        self.formed += 1
        return bool(eventually(lambda: self.server.log.count("ready: ready") >= self.formed, START_SECONDS))


def ranks_of(agent: Process) -> list[psutil.Process]:
    # Its own children only: a compiler that a rank starts has the rank's command line for a moment. And not all of
    # them: what measures the machine is another module of the same package.
    return those_running(psutil.Process(agent.process.pid).children(), "chorus.rank --rank")


def leader_of(server: Process) -> psutil.Process:
    (leader,) = those_running(psutil.Process(server.process.pid).children(), "chorus.engine")
    return leader


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Running]:
    """The nodes start last, and are waited for."""
    with cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        ports = free_block(), free_block()
        peers = [word for port in ports for word in ("--peer", f"127.0.0.1:{port}")]
        server = nodes.serve(tiny, [*peers, "--env", "CHORUS_TEST_MARK=42"])
        server.wait_for("nothing listens there")
        one, two = (nodes.agent(name, port=port)[0] for name, port in zip(("one", "two"), ports, strict=True))
        url = url_of(server)
        yield Running(nodes, ports[0], one, two, server, url, complete(url))


def test_nodes_that_start_last_are_waited_for_and_serve_one_model(running: Running) -> None:
    assert running.text
    assert [len(ranks_of(agent)) for agent in (running.one, running.two)] == [1, 1]


def test_variables_reach_every_rank(running: Running) -> None:
    for rank in (*ranks_of(running.one), *ranks_of(running.two), leader_of(running.server)):
        assert rank.environ()["CHORUS_TEST_MARK"] == "42"


def test_status_logs_and_test_speak_of_the_running_cluster(running: Running) -> None:
    nodes = running.nodes
    status = nodes.chorus("status", "status", "--json")
    logs = nodes.chorus("logs", "logs", "one")
    asked = nodes.chorus("test", "test", "--tokens", "4")
    assert status.wait() == 0, status.log
    assert '"name": "one"' in status.log
    assert re.search(r'"step": [1-9]', status.log), status.log
    assert re.search(r'"bandwidth_bytes_per_second": [1-9]', status.log), status.log
    assert logs.wait() == 0, logs.log
    assert re.search("rank [12] holds layers", logs.log), logs.log
    assert asked.wait() == 0, asked.log
    assert "tok/s" in asked.log


def test_what_is_scraped_of_a_rank_names_its_node(running: Running) -> None:
    ranks = httpx.get(f"{running.url}/cluster/status", timeout=120).json()["ranks"]
    named = {str(rank["rank"]): rank["node"] for rank in ranks}
    assert {"one", "two"} < set(named.values())

    def scraped() -> dict[str, set[str]]:
        found = [dict(labels) for name, labels in scrape(running.url).values if name == "chorus_rank_step"]
        return {rank: {labels["node"] for labels in found if labels["rank"] == rank} for rank in named}

    assert eventually(lambda: scraped() == {rank: {node} for rank, node in named.items()}, START_SECONDS), scraped()


def test_a_plan_with_one_more_machine_counts_the_nodes_that_are_there(running: Running) -> None:
    told = httpx.post(f"{running.url}/cluster/plan", json={"add": ["paper=16GB:10"]}, timeout=120).raise_for_status()

    def named(outcome: dict[str, Any]) -> set[str]:
        plan = outcome["plan"]
        return {part["node"] for part in (*plan["ranks"], *plan["excluded"])}

    today, then = named(told.json()["today"]), named(told.json()["then"])
    assert {"one", "two"} < today
    assert then == {*today, "paper"}


def test_only_one_agent_runs_per_machine(running: Running) -> None:
    second, _ = running.nodes.agent("one")
    assert second.wait() == 1
    assert f"process {running.one.process.pid}" in second.log


def test_a_killed_rank_is_started_again_alone_where_it_was_and_a_stream_goes_on(running: Running) -> None:
    expected = complete(running.url, **LONG)
    (lost,), (other,), leader = ranks_of(running.one), ranks_of(running.two), leader_of(running.server)
    words = lost.cmdline()
    stream = Stream(running.url, **LONG)
    stream.wait_for(20)
    lost.kill()
    assert stream.text() == expected
    (found,) = ranks_of(running.one)
    assert found.pid != lost.pid
    assert found.cmdline() == words, "it listens elsewhere"
    assert "SIGKILL" in found.environ()["CHORUS_LAST_LOSS"]
    assert [ranks_of(running.two), leader_of(running.server)] == [[other], leader]
    running.formed = running.server.log.count("ready: ready")


def test_a_killed_leader_finds_the_other_ranks_with_their_weights(running: Running) -> None:
    before = [*ranks_of(running.one), *ranks_of(running.two)]
    leader_of(running.server).kill()
    assert running.forms_again(), running.server.log
    assert complete(running.url) == running.text
    assert [*ranks_of(running.one), *ranks_of(running.two)] == before


def test_an_agent_that_is_silent_while_its_rank_works_is_left_alone(running: Running) -> None:
    before = [*ranks_of(running.one), *ranks_of(running.two), leader_of(running.server)]
    stream = Stream(running.url, max_tokens=3000, logit_bias={"2": -100})
    stream.wait_for(20)
    running.two.process.send_signal(signal.SIGSTOP)
    try:
        running.server.wait_for("two sends no heartbeats, but steps that need it finish")
    finally:
        running.two.process.send_signal(signal.SIGCONT)
    assert stream.text()
    assert [*ranks_of(running.one), *ranks_of(running.two), leader_of(running.server)] == before


def test_a_coordinator_that_stops_leaves_nothing_behind(running: Running) -> None:
    ranks = [*ranks_of(running.one), *ranks_of(running.two)]
    assert len(ranks) == 2
    below = running.server.children()
    assert running.server.stop() == 0, running.server.log
    _, left = psutil.wait_procs([*ranks, *below], timeout=60)
    assert not left
    assert running.one.process.poll() is None, "an agent survives its coordinator"


def test_the_coordinators_journal_tells_of_its_nodes_and_of_every_rank_that_was_lost(running: Running) -> None:
    """When all of it is down."""
    story = journal.read(journal.folder_in(running.nodes.state))
    kinds = [event.kind for event in story]
    assert kinds[0] == "server_started"
    assert {event.node for event in story if event.kind == "node_joined"} == {"one", "two"}
    lost = [event for event in story if event.kind == "rank_lost"]
    assert [(event.node, event.cause) for event in lost] == [("one", "outside"), ("", "outside")]
    assert lost[1].rank == 0
    assert "ended with SIGKILL" in lost[0].text
    (recovered,) = (event for event in story if event.kind == "recovered")
    assert recovered.numbers["streams"] == 1
    assert story.index(lost[0]) < story.index(recovered) < story.index(lost[1])
    assert kinds[kinds.index("rank_lost", kinds.index("recovered")) :].count("serves_again") == 1
    assert kinds[-2:] == ["model_unloaded", "server_stopped"]
    assert {event.model for event in (*lost, recovered)} == {story[kinds.index("model_ready")].model}
    assert "node_lost" not in kinds


def test_a_node_runs_one_rank_however_its_coordinator_or_its_rank_is_lost(running: Running, tiny: Path) -> None:
    """Nor does it run the rank of a coordinator that is gone beside that of the next one."""
    running.serve_with_one_node(tiny)
    (lost,) = ranks_of(running.one)
    os.kill(running.server.process.pid, signal.SIGKILL)
    running.server.wait()
    most = 0

    def looks() -> None:
        nonlocal most
        most = max(most, len(ranks_of(running.one)))

    running.serve_with_one_node(tiny, looks)
    assert complete(running.url) == running.text
    assert not lost.is_running()
    assert most == 1, f"{most} ranks at once, one of a coordinator that is gone\n{running.one.log}"

    (frozen,) = ranks_of(running.one)
    frozen.suspend()

    def again() -> bool:
        return not frozen.is_running() and answered(running.url) is not None

    assert eventually(again, 180), running.one.log + running.server.log
    assert complete(running.url) == running.text
    running.formed = running.server.log.count("ready: ready")


def test_nothing_outlives_a_killed_agent_and_a_member_needs_no_token_when_it_starts_again(running: Running) -> None:
    (rank,) = ranks_of(running.one)
    os.kill(running.one.process.pid, signal.SIGKILL)
    running.one.wait()
    psutil.wait_procs([rank], timeout=60)
    assert not rank.is_running()
    # One that is back before the coordinator has decided is simply used again.
    running.server.wait_for("continuing with this machine alone without one")
    running.one = running.nodes.chorus(
        "one",
        *("join", "--listen", f"127.0.0.1:{running.port}", "--name", "one", "--no-announce"),
        state=running.nodes.folder / "state-one",
    )
    assert running.forms_again(), running.server.log
    assert complete(running.url) == running.text, "one rank does not say what three have said"
    running.server.wait_for("one came and is not used: about .* `chorus replan` plans with it")
    stream = Stream(running.url, max_tokens=1500, logit_bias={"2": -100})
    stream.wait_for(20)
    replanned = running.nodes.chorus("replan", "replan", "--port", running.url.rpartition(":")[2])
    assert replanned.wait() == 0, replanned.log
    assert "served by this machine with one" in replanned.log
    assert len(ranks_of(running.one)) == 1
    assert stream.text() == complete(running.url, max_tokens=1500, logit_bias={"2": -100})


def test_an_agent_that_is_told_the_coordinator_calls_in_and_its_rank_ends_when_that_is_killed(
    nodes: Cluster, tiny: Path
) -> None:
    """No announcements, and the coordinator was told nothing but the split: the node finds it. How long it waits for
    one that is gone is the coordinator's to say.
    """
    door = free_block()
    agent, _ = nodes.agent("caller", "--peer", f"127.0.0.1:{door}")
    agent.wait_for("cannot reach")
    words = ["--listen", f"127.0.0.1:{door}", "--nodes", "1", "--split", "2,5"]
    server = nodes.serve(tiny, words, CHORUS_WATCH__LEASE_SECONDS="10")
    assert complete(url_of(server))
    assert "rank 0 holds layers 5-6" in server.log
    (rank,) = ranks_of(agent)
    os.kill(server.process.pid, signal.SIGKILL)
    server.wait()
    agent.wait_for(r"nobody has watched session \w+ for 10 s")
    assert eventually(lambda: not rank.is_running()), agent.log


def test_a_missing_node_is_named_in_time(nodes: Cluster, tiny: Path) -> None:
    port = free_block()
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}", "--start-timeout", "2"])
    assert server.wait() == 1
    assert f"127.0.0.1:{port}" in server.log
    assert "Traceback" not in server.log


def test_an_agent_without_token_or_certificate_says_what_it_needs(nodes: Cluster) -> None:
    agent = nodes.chorus("bare", "join", "--listen", "127.0.0.1:0", state=nodes.folder / "nothing")
    assert agent.wait() == 1
    assert "--token" in agent.log


def test_a_stream_goes_on_over_the_others_when_its_node_is_drained(nodes: Cluster, tiny: Path) -> None:
    agents = {name: nodes.agent(name) for name in ("one", "two")}
    peers = [word for _, port in agents.values() for word in ("--peer", f"127.0.0.1:{port}")]
    server = nodes.serve(tiny, peers)
    url = url_of(server)
    expected = complete(url, **LONG)
    stream = Stream(url, **LONG)
    stream.wait_for(20)
    drained = nodes.chorus("drain", "drain", "one")
    assert drained.wait() == 0, drained.log
    assert not ranks_of(agents["one"][0])
    assert stream.text() == expected
    server.wait_for("one drains: ending the ranks in order")
    assert eventually(lambda: len(ranks_of(agents["two"][0])) == 1), server.log
    agents["two"][0].process.kill()
    server.wait_for("two is gone")

    def told() -> list[tuple[str, str]]:
        story = [(event.kind, event.node) for event in journal.read(journal.folder_in(nodes.state))]
        return [each for each in story if each in (DRAINS, REPLANNED, LOST)]

    assert eventually(lambda: told() == [DRAINS, REPLANNED, LOST]), told()


def test_nodes_of_two_releases_serve_together(nodes: Cluster, tiny: Path, tmp_path: Path) -> None:
    """One release says so in every process of the node: its agent and its rank."""
    pretend = tmp_path / "pretend"
    pretend.mkdir()
    (pretend / "sitecustomize.py").write_text("import chorus; chorus.__version__ = '9.9.9'")
    path = os.pathsep.join([str(pretend), *filter(None, [os.environ.get("PYTHONPATH")])])
    _, port = nodes.agent("newer", PYTHONPATH=path)
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}"])
    assert complete(url_of(server))
    status = nodes.chorus("status", "status", "--json")
    assert status.wait() == 0, status.log
    assert '"version": "9.9.9"' in status.log
