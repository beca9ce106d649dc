"""A server that ends lets go of what it loses meanwhile: nothing is started again, wherever its ranks are."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from chorus.telemetry import events, journal
from tests.cluster.harness import LAUNCH, Cluster, Process, cluster, complete, eventually, free_block, url_of
from tests.cluster.test_agents import ranks_of
from tests.deploy.test_worker import Hosts
from tests.support.server import running
from tests.support.tiny_model import write_store_entry, write_tiny_model

SLOW = {"CHORUS_API__SHUTDOWN_GRACE_SECONDS": "100"}
"""Longer than any group takes to be there again."""
RECOVERY = (events.RANK_LOST, events.RECOVERED, events.SERVES_AGAIN, events.REPLANNED, events.GOES_ON)


@dataclass
class Ending:
    """A server and what it may lose."""

    nodes: Cluster
    server: Process
    lose: dict[str, Callable[[], object]]

    def engines(self) -> list[psutil.Process]:
        return running(self.server.children(), "chorus.engine")

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """The server was told to end, and does not get further than its front end, which goes first."""
        (front_end,) = running(self.server.children(), "chorus.api")
        # A server that runs replaces a front end that stands still for a second: it wakes up with the signal to end.
        server = psutil.Process(self.server.process.pid)
        server.suspend()
        front_end.suspend()
        try:
            self.server.process.send_signal(signal.SIGTERM)
            server.resume()
            self.server.wait_for("the server ends")
            yield
        finally:
            with suppress(psutil.NoSuchProcess):  # one that stands still for long is ended by force
                front_end.resume()

    def journal(self) -> list[str]:
        return [event.kind for event in journal.read(journal.folder_in(self.nodes.state))]


@contextmanager
def on_this_machine(nodes: Cluster, model: Path) -> Iterator[Ending]:
    command = ["serve", str(model), "--ranks", "2", "--transport", "grpc", "--port", "0"]
    server = nodes.run("server", ["-c", LAUNCH, *command], nodes.state, **SLOW)
    assert complete(url_of(server))
    yield Ending(
        nodes,
        server,
        {
            "rank": lambda: running(server.children(), "chorus.rank")[0].kill(),
            "leader": lambda: running(server.children(), "chorus.engine")[0].kill(),
        },
    )


@contextmanager
def by_hand(nodes: Cluster, model: Path) -> Iterator[Ending]:
    write_store_entry(nodes.folder / "cache", "tiny-by-name", model)
    hosts = Hosts(nodes, nodes.folder / "cache", 2)
    worker, server = hosts.worker(1), hosts.worker(0, **SLOW)
    assert complete(url_of(server))
    yield Ending(nodes, server, {"rank": lambda: running(worker.children(), "chorus.rank")[0].kill()})


@contextmanager
def over_nodes(nodes: Cluster, model: Path) -> Iterator[Ending]:
    port = free_block()
    server = nodes.serve(model, ["--peer", f"127.0.0.1:{port}", "--transport", "grpc"], **SLOW)
    agent, _ = nodes.agent("node", port=port)
    assert complete(url_of(server))
    yield Ending(nodes, server, {"rank": lambda: ranks_of(agent)[0].kill(), "agent": lambda: agent.stop()})


@pytest.mark.parametrize(
    ("where", "lost"),
    [
        (on_this_machine, "rank"),
        (on_this_machine, "leader"),
        (by_hand, "rank"),
        (over_nodes, "rank"),
        (over_nodes, "agent"),
    ],
)
def test_what_is_lost_while_a_server_ends_is_not_started_again_and_its_group_ends(
    tmp_path: Path, where: Callable[[Cluster, Path], AbstractContextManager[Ending]], lost: str
) -> None:
    model = write_tiny_model(tmp_path / "tiny", "llama", vocab_size=512)
    with cluster(tmp_path / "cluster") as nodes, where(nodes, model) as ending:
        with ending.held_up():
            ending.lose[lost]()
            assert eventually(lambda: not ending.engines(), 60), ending.server.log
        assert ending.server.wait() == 0, ending.server.log
        assert " again" not in ending.server.log.partition("the server ends")[2]
        told = ending.journal()
        assert not {kind.name for kind in RECOVERY} & set(told), told
        assert told.count(events.MODEL_LOADING.name) == 1
        assert told[-1] == events.SERVER_STOPPED.name


def test_a_load_that_is_under_way_ends_with_the_first_word(tmp_path: Path) -> None:
    """Nobody is rank 1, for which it waits."""
    model = write_tiny_model(tmp_path / "tiny", "llama", vocab_size=512)
    with cluster(tmp_path / "cluster") as nodes:
        hosts = Hosts(nodes, nodes.folder / "cache", 2)
        server = hosts.worker(0, "--model", str(model), **SLOW)
        ending = Ending(nodes, server, {})
        assert eventually(ending.engines), server.log
        assert eventually(lambda: running(server.children(), "chorus.api")), server.log
        with ending.held_up():
            assert eventually(lambda: not ending.engines(), 60), server.log
        assert server.wait() == 0, server.log
        assert ending.journal()[-1] == events.SERVER_STOPPED.name
