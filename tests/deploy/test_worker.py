"""Ranks started by hand from a hostfile: any order, bounded waits, errors that name who is missing."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
import socket
from pathlib import Path

import pytest

from chorus.config.hostfile import HostEntry
from chorus.deploy.rendezvous import NoAddress, RanksMissing, answered_by_another, rank_addresses, wait_for_all
from tests.cluster.harness import START_SECONDS, Cluster, Process, complete, eventually, free_block, url_of
from tests.support.ports import is_free, listening_port, listening_ports


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    """A model store that has the tiny model by name, as every machine of a hostfile must."""
    root = tmp_path_factory.mktemp("cache")
    entry = root / "models" / "tiny-by-name"
    shutil.copytree(tiny, entry)
    (entry / "chorus.json").write_text(json.dumps({"source": "x", "sha256": "x", "size": 1, "mtime_ns": 1}))
    return root


class Hosts:
    def __init__(self, nodes: Cluster, store: Path, count: int) -> None:
        self.nodes, self.store = nodes, store
        self.ports = listening_ports(count)
        self.file = nodes.folder / "hosts.json"
        self.file.write_text(json.dumps([f"127.0.0.1:{port}" for port in self.ports]))

    def worker(self, rank: int, *arguments: str) -> Process:
        command = ["worker", "mlx-distributed", "--hostfile", str(self.file), "--rank", str(rank), "--backend", "grpc"]
        if rank == 0:
            command += ["--model", "tiny-by-name", "--addr", f"localhost:{listening_port()}"]
        return self.nodes.chorus(f"rank{rank}", *command, *arguments, CHORUS_CACHE=str(self.store))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=lambda order: "".join(map(str, order)))
def test_every_start_order_works(nodes: Cluster, store: Path, order: tuple[int, ...]) -> None:
    hosts = Hosts(nodes, store, 3)
    workers = {}
    for rank in order:
        workers[rank] = hosts.worker(rank)
        # The next one starts only when this one is really there.
        workers[rank].wait_for("waits for its leader" if rank else "loading: loading")
    assert complete(url_of(workers[0]))
    for worker in workers.values():
        assert worker.stop() == 0, worker.log


@pytest.mark.parametrize("missing", range(3))
def test_a_missing_rank_is_named_by_all_others_in_time(nodes: Cluster, store: Path, missing: int) -> None:
    hosts = Hosts(nodes, store, 3)
    workers = [hosts.worker(rank, "--start-timeout", "12") for rank in range(3) if rank != missing]
    for worker in workers:
        assert worker.wait() == 1, worker.log
        # On a slow machine another may be late too, and is then named beside it.
        named = rf"rank {missing} at 127\.0\.0\.1:{hosts.ports[missing]}(, rank \d at \S+)? did not"
        assert re.search(named, worker.log), worker.log
        assert "firewall" in worker.log
        assert "Traceback" not in worker.log


def test_a_killed_rank_comes_back_and_the_group_forms_again(nodes: Cluster, store: Path) -> None:
    hosts = Hosts(nodes, store, 2)
    workers = [hosts.worker(rank) for rank in range(2)]
    url = url_of(workers[0])
    text = complete(url)
    (rank,) = workers[1].children()
    rank.kill()
    workers[1].wait_for("starting it again")
    workers[0].wait_for("starting the leader again")
    assert eventually(lambda: workers[0].log.count("ready: ready") == 2, START_SECONDS), workers[0].log
    assert complete(url) == text


def test_a_rank_whose_port_was_taken_while_it_was_down_gets_it_back(nodes: Cluster, store: Path) -> None:
    hosts = Hosts(nodes, store, 2)
    workers = [hosts.worker(rank) for rank in range(2)]
    url = url_of(workers[0])
    text = complete(url)
    (rank,) = workers[1].children()
    rank.kill()
    rank.wait(60)
    # Faster than a rank that must be started first.
    with socket.create_server(("127.0.0.1", hosts.ports[1])):
        workers[1].wait_for(f"rank 1 cannot start on 127.0.0.1:{hosts.ports[1]} now: trying again in 1 s")
    assert eventually(lambda: workers[0].log.count("ready: ready") == 2, START_SECONDS), workers[0].log
    assert complete(url) == text


def test_a_leader_cannot_name_a_path_to_ranks_without_a_token(nodes: Cluster, store: Path, tiny: Path) -> None:
    hosts = Hosts(nodes, store, 2)
    hosts.worker(1)
    leader = hosts.worker(0, "--model", str(tiny))
    assert leader.wait() == 1
    assert "is no catalog name, store entry or Hugging Face id" in leader.log


def test_a_hostfile_of_localai_tunnels_is_refused_by_name(nodes: Cluster) -> None:
    file = nodes.folder / "localai_mlx_hostfile.json"
    file.write_text('["127.0.0.1:1", "127.0.0.1:2"]')
    worker = nodes.chorus("tunnels", "worker", "mlx-distributed", "--hostfile", str(file), "--rank", "1")
    assert worker.wait() == 1
    assert "LocalAI's own p2p" in worker.log
    assert "worker p2p-mlx" in worker.log


@pytest.mark.parametrize(
    ("content", "rank", "said"),
    [
        ('["127.0.0.1:1"]', 3, "there is no rank 3"),
        ('["127.0.0.1:x"]', 0, "port"),
        ('["no-such-host.invalid:5555", "127.0.0.1:2"]', 1, "no-such-host.invalid"),
        ("{", 0, "hosts.json"),
    ],
)
def test_a_wrong_hostfile_is_one_clear_line(nodes: Cluster, content: str, rank: int, said: str) -> None:
    file = nodes.folder / "hosts.json"
    file.write_text(content)
    worker = nodes.chorus("wrong", "worker", "mlx-distributed", "--hostfile", str(file), "--rank", str(rank))
    assert worker.wait() == 1
    assert said in worker.log
    assert "Traceback" not in worker.log


def test_the_variables_of_localai_stand_for_the_flags(nodes: Cluster, store: Path) -> None:
    hosts = Hosts(nodes, store, 2)
    environment = {"MLX_DISTRIBUTED_HOSTFILE": str(hosts.file), "MLX_RANK": "1", "MLX_DISTRIBUTED_BACKEND": "grpc"}
    worker = nodes.chorus("rank1", "worker", "mlx-distributed", CHORUS_CACHE=str(store), **environment)
    worker.wait_for(f"rank 1 waits for its leader on 127.0.0.1:{hosts.ports[1]}")


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
    (rank,) = worker.children()
    assert rank_port in {c.laddr.port for c in rank.net_connections() if c.status == "LISTEN"}


def test_a_p2p_worker_refuses_localais_token_by_name(nodes: Cluster) -> None:
    theirs = "b3RwOgogIGRodDoKICAgIGludGVydmFsOiAzNjAKcm9vbTogeAo="
    worker = nodes.chorus("p2p", "worker", "p2p-mlx", TOKEN=theirs)
    assert worker.wait() == 1
    assert "LocalAI's own p2p" in worker.log


def test_names_become_ipv4_addresses() -> None:
    assert rank_addresses([HostEntry(addresses=("localhost:5555",))]) == ("127.0.0.1:5555",)
    with pytest.raises(NoAddress, match="rank 0 has RDMA devices"):
        rank_addresses([HostEntry(rdma=(None, "rdma_en5"))])


def test_waiting_ends_as_soon_as_all_are_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        asyncio.run(wait_for_all({1: f"127.0.0.1:{port}"}, 30))


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
