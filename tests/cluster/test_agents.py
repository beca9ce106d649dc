"""A cluster of real processes on loopback: joining, serving, losing, coming back."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psutil

from tests.cluster.harness import START_SECONDS, Cluster, complete, eventually, free_block, url_of
from tests.support.server import ChorusServer


def test_three_nodes_serve_one_model_and_leave_nothing_behind(nodes: Cluster, tiny: Path) -> None:
    first, one = nodes.agent("one")
    second, two = nodes.agent("two")
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{one}", "--peer", f"127.0.0.1:{two}"])
    url = url_of(server)
    text = complete(url)
    assert text
    ranks = [*first.children(), *second.children()]
    assert len(ranks) == 2
    below = server.children()
    assert server.stop() == 0, server.log
    _, left = psutil.wait_procs([*ranks, *below], timeout=60)
    assert not left
    assert first.process.poll() is None, "an agent survives its coordinator"
    with ChorusServer(tiny, [], nodes.folder) as alone:
        assert alone.text("The quick brown fox", max_tokens=12) == text


def test_a_node_that_starts_last_is_waited_for(nodes: Cluster, tiny: Path) -> None:
    port = free_block()
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}"])
    server.wait_for("nothing listens there")
    nodes.agent("late", port=port)
    assert complete(url_of(server))


def test_an_agent_that_is_told_the_coordinator_calls_in(nodes: Cluster, tiny: Path) -> None:
    """No announcements, and the coordinator was told nothing: the node finds it."""
    door = free_block()
    agent, _ = nodes.agent("caller", "--peer", f"127.0.0.1:{door}")
    agent.wait_for("cannot reach")
    server = nodes.serve(tiny, ["--listen", f"127.0.0.1:{door}", "--nodes", "1"])
    assert complete(url_of(server))


def test_a_given_split_is_kept(nodes: Cluster, tiny: Path) -> None:
    _, port = nodes.agent("one")
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}", "--split", "2,5"])
    url_of(server)
    assert "rank 0 holds layers 5-6" in server.log


def test_a_missing_node_is_named_in_time(nodes: Cluster, tiny: Path) -> None:
    port = free_block()
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}", "--start-timeout", "2"])
    assert server.wait() == 1
    assert f"127.0.0.1:{port}" in server.log
    assert "Traceback" not in server.log


def test_ranks_end_when_their_coordinator_is_killed_and_the_next_one_works(nodes: Cluster, tiny: Path) -> None:
    agent, port = nodes.agent("one")
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}"])
    text = complete(url_of(server))
    (rank,) = agent.children()
    os.kill(server.process.pid, signal.SIGKILL)
    server.wait()
    assert eventually(lambda: not rank.is_running()), agent.log
    again = nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}"])
    assert complete(url_of(again)) == text


def test_nothing_outlives_a_killed_agent(nodes: Cluster, tiny: Path) -> None:
    agent, port = nodes.agent("one")
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}"])
    url_of(server)
    (rank,) = agent.children()
    os.kill(agent.process.pid, signal.SIGKILL)
    psutil.wait_procs([rank], timeout=60)
    assert not rank.is_running()


def test_a_killed_rank_is_started_again(nodes: Cluster, tiny: Path) -> None:
    agent, port = nodes.agent("one")
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}"])
    url = url_of(server)
    text = complete(url)
    (rank,) = agent.children()
    rank.kill()
    server.wait_for("starting the ranks again")
    assert eventually(lambda: len(re.findall("ready: ready", server.log)) == 2, START_SECONDS), server.log
    assert complete(url) == text


def test_only_one_agent_runs_per_machine(nodes: Cluster) -> None:
    agent, _ = nodes.agent("one")
    agent.wait_for("waiting on")
    second, _ = nodes.agent("one")
    assert second.wait() == 1
    assert f"process {agent.process.pid}" in second.log


def test_an_agent_without_token_or_certificate_says_what_it_needs(nodes: Cluster) -> None:
    agent = nodes.chorus("bare", "join", "--listen", "127.0.0.1:0", state=nodes.folder / "nothing")
    assert agent.wait() == 1
    assert "--token" in agent.log


def test_a_member_needs_no_token_when_it_starts_again(nodes: Cluster, tiny: Path) -> None:
    agent, port = nodes.agent("one")
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}"])
    url_of(server)
    agent.stop()
    nodes.chorus(
        "one",
        *("join", "--listen", f"127.0.0.1:{port}", "--name", "one", "--no-announce"),
        state=nodes.folder / "state-one",
    )
    assert eventually(lambda: len(re.findall("ready: ready", server.log)) == 2, START_SECONDS), server.log
    assert complete(url_of(server))


def test_status_logs_drain_and_test_speak_of_the_running_cluster(nodes: Cluster, tiny: Path) -> None:
    _, port = nodes.agent("one")
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}", "--env", "MLX_METAL_FAST_SYNCH=1"])
    url = url_of(server)
    complete(url)
    status = nodes.chorus("status", "status", "--json")
    assert status.wait() == 0, status.log
    assert '"name": "one"' in status.log
    assert re.search(r'"step": [1-9]', status.log), status.log
    assert re.search(r'"bandwidth_bytes_per_second": [1-9]', status.log), status.log
    logs = nodes.chorus("logs", "logs", "one")
    assert logs.wait() == 0, logs.log
    assert "rank 1 holds layers" in logs.log
    asked = nodes.chorus("test", "test", "--tokens", "4")
    assert asked.wait() == 0, asked.log
    assert "tok/s" in asked.log
    drained = nodes.chorus("drain", "drain", "one")
    assert drained.wait() == 0, drained.log
    server.wait_for("continuing with this machine alone")
    assert eventually(lambda: len(re.findall("ready: ready", server.log)) == 2, START_SECONDS), server.log
    assert complete(url)


def test_variables_reach_every_rank(nodes: Cluster, tiny: Path) -> None:
    agent, port = nodes.agent("one")
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}", "--env", "CHORUS_TEST_MARK=42"])
    url_of(server)
    (rank,) = agent.children()
    assert rank.environ()["CHORUS_TEST_MARK"] == "42"
    leader = next(p for p in server.children() if "chorus.engine" in " ".join(p.cmdline()))
    assert leader.environ()["CHORUS_TEST_MARK"] == "42"
