"""Ranks started by hand from a hostfile: any order, bounded waits, errors that name who is missing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from chorus.config.hostfile import HostEntry
from chorus.deploy.hostfile import rendezvous
from chorus.deploy.hostfile.rendezvous import (
    NoAddress,
    RanksMissing,
    answered_by_another,
    log,
    rank_addresses,
    wait_for_all,
)
from chorus.engine.lifecycle.group import form_group
from chorus.engine.ranks.followers import CannotForm
from chorus.platform.process.losses import Cause, Loss, last_loss
from chorus.rank.worker import Worker
from tests.cluster.harness import START_SECONDS, Cluster, Process, cluster, complete, eventually, free_block, url_of
from tests.cluster.test_agents import ranks_of
from tests.rank.pipeline.test_processes import generate
from tests.support.ports import is_free, listening_port, listening_ports
from tests.support.ranks import Ranks
from tests.support.tiny_model import write_store_entry, write_tiny_model


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    """A model store that has the tiny model by name, as every machine of a hostfile must."""
    root = tmp_path_factory.mktemp("cache")
    write_store_entry(root, "tiny-by-name", tiny)
    return root


class Hosts:
    def __init__(self, nodes: Cluster, store: Path, count: int) -> None:
        self.nodes, self.store = nodes, store
        self.ports = listening_ports(count)
        self.file = nodes.folder / f"hosts-{self.ports[0]}.json"
        self.file.write_text(json.dumps([f"127.0.0.1:{port}" for port in self.ports]))

    def worker(self, rank: int, *arguments: str, **variables: str) -> Process:
        command = ["worker", "mlx-distributed", "--hostfile", str(self.file), "--rank", str(rank), "--backend", "grpc"]
        if rank == 0:
            command += ["--addr", f"localhost:{listening_port()}"]
            command += [] if "--model" in arguments else ["--model", "tiny-by-name"]
        return self.nodes.chorus(f"rank{rank}", *command, *arguments, CHORUS_CACHE=str(self.store), **variables)

    def worker_by_variables(self, rank: int) -> Process:
        environment = {"MLX_DISTRIBUTED_HOSTFILE": str(self.file), "MLX_RANK": str(rank)}
        environment |= {"MLX_DISTRIBUTED_BACKEND": "grpc", "CHORUS_CACHE": str(self.store)}
        return self.nodes.chorus(f"rank{rank}", "worker", "mlx-distributed", **environment)


class Followers:
    """Two that outlive their leaders, which live in the test; each is started anew where an order asks for it."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.addresses = ranks.addresses(3)
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def keep_only(self, rank: int) -> None:
        for other in self._running.keys() - {rank}:
            process = self._running.pop(other)
            process.terminate()
            assert process.wait(60) == 0, self._ranks.log(f"rank{other}")

    def start(self, *ranks: int) -> None:
        """The next one only when this one is really there."""
        for rank in ranks:
            if rank not in self._running:
                self._running[rank] = self._ranks.follower(rank, self.addresses[rank])
                self._ranks.wait_for_log(f"rank{rank}", "waits for its leader")

    def start_behind_the_leader(self, *ranks: int) -> None:
        if ranks:
            asyncio.run(wait_for_all({0: self.addresses[0]}, 120))
            self.start(*ranks)


@pytest.fixture(scope="module")
def followers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ranks, Followers]]:
    with Ranks(tmp_path_factory.mktemp("ranks")) as ranks:
        yield ranks, Followers(ranks)


# One after the other, so that who comes first is often there from before.
@pytest.mark.parametrize("order", ["120", "102", "210", "201", "012", "021"])
def test_every_start_order_works(followers: tuple[Ranks, Followers], tiny: Path, order: str) -> None:
    ranks, others = followers
    spec = ranks.spec(tiny, others.addresses)
    starts = [int(rank) for rank in order]
    leads = starts.index(0)
    others.keep_only(starts[0])
    others.start(*starts[:leads])
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(others.start_behind_the_leader, *starts[leads + 1 :])
        said = generate(spec, together=False)
        late.result()
    assert said == generate(ranks.spec(tiny, ()), together=False)


def test_a_missing_rank_is_named_by_all_others_in_time(nodes: Cluster, store: Path) -> None:
    """The leader of one group and the last of another, which wait at the same time."""
    workers: list[tuple[str, Process]] = []
    for missing in (0, 2):
        hosts = Hosts(nodes, store, 3)
        # On a slow machine another may be late too, and is then named beside it.
        named = rf"rank {missing} at 127\.0\.0\.1:{hosts.ports[missing]}(, rank \d at \S+)? did not"
        workers += [(named, hosts.worker(rank, "--start-timeout", "12")) for rank in range(3) if rank != missing]
    for named, worker in workers:
        assert worker.wait() == 1, worker.log
        assert re.search(named, worker.log), worker.log
        assert "firewall" in worker.log
        assert "Traceback" not in worker.log


def test_a_rank_that_is_missing_between_others_is_named_by_both(tiny: Path, tmp_path: Path) -> None:
    with Ranks(tmp_path) as ranks:
        addresses = ranks.addresses(3)
        last = Worker(2, addresses[2])
        with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as cleanup:
            serving = pool.submit(last.serve)
            cleanup.callback(serving.result, 60)
            cleanup.callback(last.stop)
            spec = ranks.spec(tiny, addresses, start_timeout_seconds=5)
            with pytest.raises(CannotForm, match=rf"^rank 1 at {addresses[1]} did not answer .*firewall") as by_leader:
                form_group(spec, lambda fraction: None, cleanup)
            assert "rank 2" not in str(by_leader.value)
            others = {0: addresses[2], 1: addresses[1]}
            with pytest.raises(RanksMissing, match=rf"^rank 1 at {addresses[1]} did not come .*firewall"):
                asyncio.run(wait_for_all(others, 5))


@dataclass
class Group:
    hosts: Hosts
    workers: dict[int, Process]
    url: str
    text: str
    formed: int = 1

    def kill_rank(self, rank: int) -> psutil.Process:
        (child,) = ranks_of(self.workers[rank])
        child.kill()
        return child

    def forms_again(self) -> bool:
        self.formed += 1
        return bool(eventually(lambda: self.workers[0].log.count("ready: ready") == self.formed, START_SECONDS))


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Group]:
    """One rank comes before its leader and one, told by variables what others are told by flags, after it."""
    with cluster(tmp_path_factory.mktemp("group")) as nodes:
        hosts = Hosts(nodes, store, 3)
        workers = {2: hosts.worker(2)}
        workers[2].wait_for("waits for its leader")
        workers[0] = hosts.worker(0)
        workers[0].wait_for("loading: loading")
        workers[1] = hosts.worker_by_variables(1)
        workers[1].wait_for(f"rank 1 at 127.0.0.1:{hosts.ports[1]} waits for its leader")
        url = url_of(workers[0])
        yield Group(hosts, workers, url, complete(url))


def test_a_killed_rank_comes_back_alone_and_tells_the_leader_how_the_one_before_was_lost(group: Group) -> None:
    assert group.text
    before = set(group.workers[0].children())
    group.kill_rank(2)
    group.workers[2].wait_for("starting it again")
    assert group.forms_again(), group.workers[0].log
    assert complete(group.url) == group.text
    assert before <= set(group.workers[0].children()), group.workers[0].log
    (child,) = ranks_of(group.workers[2])
    assert last_loss(child.environ()) == Loss(Cause.OUTSIDE, "rank 2 ended with SIGKILL")


def test_a_worker_keeps_its_port_while_its_rank_is_down(group: Group) -> None:
    port = group.hosts.ports[1]
    group.kill_rank(1).wait(60)
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port), reuse_port=False).close()
    assert group.forms_again(), group.workers[0].log
    assert complete(group.url) == group.text


def test_a_worker_whose_port_is_taken_says_so_in_one_line(group: Group) -> None:
    second = group.hosts.worker(1)
    assert second.wait() == 1
    assert f"cannot listen on 127.0.0.1:{group.hosts.ports[1]}: is another process using it?" in second.log
    assert "Traceback" not in second.log


def test_workers_end_as_they_should_and_the_others_wait_for_the_next_leader(group: Group, tiny: Path) -> None:
    assert group.workers[0].stop() == 0, group.workers[0].log
    with_a_path = group.hosts.worker(0, "--model", str(tiny))
    assert with_a_path.wait() == 1
    # A leader cannot name a path to ranks without a token, though it is there.
    assert "start it with --model FOLDER, or run `chorus models import FOLDER" in with_a_path.log
    for rank in (1, 2):
        assert group.workers[rank].stop() == 0, group.workers[rank].log


def test_a_local_folder_is_a_model_where_every_rank_names_its_own(nodes: Cluster, tiny: Path, tmp_path: Path) -> None:
    hosts = Hosts(nodes, tmp_path / "empty-store", 2)
    mine = tmp_path / "my-copy"
    shutil.copytree(tiny, mine)
    follower = hosts.worker(1, "--model", str(mine))
    follower.wait_for("waits for its leader")
    with_another = hosts.worker(0, "--model", str(write_tiny_model(tmp_path / "another", num_hidden_layers=3)))
    assert with_another.wait() == 1
    assert "rank 1: my-copy here is another model than rank 0's another: config.json has " in with_another.log
    leader = hosts.worker(0, "--model", str(tiny), MINIMAX_PIPELINE_SPLIT="5,2")
    assert complete(url_of(leader))
    assert "rank 0 holds layers 2-6," in leader.log
    assert "rank 1 holds layers 0-1," in follower.log


def test_a_hostfile_of_localai_tunnels_is_refused_by_name(tmp_path: Path, refusal: Callable[..., str]) -> None:
    file = tmp_path / "localai_mlx_hostfile.json"
    file.write_text('["127.0.0.1:1", "127.0.0.1:2"]')
    said = refusal("worker", "mlx-distributed", "--hostfile", str(file), "--rank", "1")
    assert "LocalAI's own p2p" in said
    assert "worker p2p-mlx" in said


@pytest.mark.parametrize(
    ("content", "rank", "said"),
    [
        ('["127.0.0.1:1"]', 3, "there is no rank 3"),
        ('["127.0.0.1:x"]', 0, "port"),
        ('["no-such-host.invalid:5555", "127.0.0.1:2"]', 1, "no-such-host.invalid"),
        ("{", 0, "hosts.json"),
    ],
)
def test_a_wrong_hostfile_is_one_clear_line(
    tmp_path: Path, refusal: Callable[..., str], content: str, rank: int, said: str
) -> None:
    file = tmp_path / "hosts.json"
    file.write_text(content)
    assert said in refusal("worker", "mlx-distributed", "--hostfile", str(file), "--rank", str(rank))


def test_a_p2p_worker_is_found_and_serves_on_its_own_port(nodes: Cluster, tiny: Path) -> None:
    rank_port = listening_port()
    door = free_block()
    worker = nodes.chorus(
        "p2p",
        *("worker", "p2p-mlx", "--listen", f"127.0.0.1:{door}", "--mlx-listen-port", str(rank_port)),
        *("--mlx-backend", "ring", "--name", "p2p"),
        state=nodes.folder / "state-p2p",
        TOKEN=nodes.token.text,
    )
    worker.wait_for("waiting on")
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{door}"])
    assert complete(url_of(server))
    assert f"on port {rank_port}" in worker.log
    (rank,) = ranks_of(worker)
    assert rank_port in {c.laddr.port for c in rank.net_connections() if c.status == "LISTEN"}


def test_a_p2p_worker_refuses_localais_token_by_name(
    monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    monkeypatch.setenv("TOKEN", "b3RwOgogIGRodDoKICAgIGludGVydmFsOiAzNjAKcm9vbTogeAo=")
    assert "LocalAI's own p2p" in refusal("worker", "p2p-mlx")


def test_names_become_ipv4_addresses() -> None:
    assert rank_addresses([HostEntry(addresses=("localhost:5555",))]) == ("127.0.0.1:5555",)
    with pytest.raises(NoAddress, match="rank 0 has RDMA devices and no address"):
        rank_addresses([HostEntry(rdma=(None, "rdma_en5"))])


def test_waiting_ends_as_soon_as_all_are_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        asyncio.run(wait_for_all({1: f"127.0.0.1:{port}"}, 30))


def test_who_waits_without_a_limit_says_for_whom_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "REMIND_SECONDS", 0.01)
    port = listening_port()

    async def come_late() -> None:
        waiting = asyncio.create_task(wait_for_all({0: f"127.0.0.1:{port}"}, None))
        while len(caplog.records) < 3:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        with socket.create_server(("127.0.0.1", port)):
            await waiting

    with caplog.at_level("INFO", log.name):
        asyncio.run(come_late())
    assert f"waiting for rank 0 at 127.0.0.1:{port}, " in caplog.text


def test_a_knock_that_meets_itself_is_no_answer_and_leaves_the_port_free() -> None:
    async def knock(port: int) -> bool:
        own = socket.socket()
        own.bind(("127.0.0.1", port))
        own.connect(("127.0.0.1", port))
        _, writer = await asyncio.open_connection(sock=own)
        answered = answered_by_another(writer)
        writer.close()
        await writer.wait_closed()
        return answered

    port = listening_port()
    assert not asyncio.run(knock(port))
    assert is_free(port)


def test_waiting_names_everybody_who_is_missing() -> None:
    first, second = listening_ports(2)
    addresses = {1: f"127.0.0.1:{first}", 2: f"127.0.0.1:{second}"}
    with pytest.raises(RanksMissing) as caught:
        asyncio.run(wait_for_all(addresses, 0.5))
    assert all(address in str(caught.value) for address in addresses.values())
