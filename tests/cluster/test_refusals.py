"""Whoever does not belong to the cluster sees a closed connection, is logged, and harms nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from chorus.cluster.agent import peers
from chorus.messages.proto import agent_pb2, agent_pb2_grpc, rank_pb2, rank_pb2_grpc
from chorus.security import handshake
from chorus.security.authority import Authority
from chorus.security.identity import Identity
from chorus.security.member import COORDINATOR, NODE
from chorus.security.names import server_name
from chorus.security.token import Token
from tests.cluster.harness import Cluster, Process, cluster, complete, eventually, url_of
from tests.cluster.test_agents import leader_of


@dataclass
class Running:
    made: Cluster
    agent: Process
    server: Process
    url: str
    ports: dict[str, int]

    def unharmed(self) -> None:
        assert complete(self.url)
        assert self.agent.process.poll() is None
        assert "Traceback" not in self.agent.log


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Running]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        agent, port = made.agent("one")
        server = made.serve(tiny, ["--peer", f"127.0.0.1:{port}"])
        url = url_of(server)
        ports = {"door": port, "control": port + 1, "rank": port + 2}
        found = leader_of(server).net_connections("tcp")
        ports["leader"] = next(each.laddr.port for each in found if each.status == "LISTEN")
        yield Running(made, agent, server, url, ports)


PORTS = ["door", "control", "rank", "leader"]


@pytest.mark.parametrize("where", PORTS)
def test_random_bytes_harm_nothing_and_get_nothing(running: Running, where: str) -> None:
    for seed in range(3):
        answer = _say(running.ports[where], random.Random(seed).randbytes(10_000))
        assert len(answer) < 64, f"{where} told a stranger {answer!r}"
    running.unharmed()


@pytest.mark.parametrize("where", PORTS)
def test_a_plain_text_client_sees_a_closed_connection(running: Running, where: str) -> None:
    http = _say(running.ports[where], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"HTTP" not in http
    preface = _say(running.ports[where], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
    assert len(preface) < 64
    with grpc.insecure_channel(f"127.0.0.1:{running.ports[where]}") as channel, pytest.raises(grpc.RpcError) as caught:
        rank_pb2_grpc.RankStub(channel).Hello(rank_pb2.HelloRequest(version="x"), timeout=3)
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    running.unharmed()


def test_a_port_scan_harms_nothing(running: Running) -> None:
    for port in running.ports.values():
        for _ in range(20):
            socket.create_connection(("127.0.0.1", port), 5).close()
    running.unharmed()


def test_silent_connections_do_not_lock_others_out(running: Running) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", running.ports["door"]), 5))
        met = asyncio.run(peers.ask(("127.0.0.1", running.ports["door"]), _coordinator(running)))
        assert met.member.name == "one"


def test_a_certificate_of_another_cluster_opens_no_port(running: Running, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other").issue(tmp_path / "intruder", "intruder", COORDINATOR)
    # It even believes our authority, so that its own side has nothing against the connection.
    (other.folder / "ca.pem").write_bytes(running.made.authority.certificate_pem)
    intruder = Identity(other.folder)
    with pytest.raises((OSError, handshake.JoinRefused)):
        asyncio.run(peers.ask(("127.0.0.1", running.ports["door"]), intruder))
    assert _describe(running, intruder) is grpc.StatusCode.UNAVAILABLE
    assert _hello(running, intruder) is grpc.StatusCode.UNAVAILABLE
    assert eventually(lambda: "refused 127.0.0.1" in running.agent.log), running.agent.log
    running.unharmed()


def test_a_node_may_not_steer_other_nodes(running: Running, tmp_path: Path) -> None:
    node = running.made.authority.issue(tmp_path / "node", "nosy", NODE)
    assert _describe(running, node) is grpc.StatusCode.UNAVAILABLE
    assert _hello(running, node) is grpc.StatusCode.UNAVAILABLE
    assert eventually(lambda: "nosy is no coordinator" in running.agent.log), running.agent.log
    assert _hello(running, _coordinator(running)) is grpc.StatusCode.OK


def test_an_expelled_node_is_refused_everywhere_while_everything_runs(running: Running, tmp_path: Path) -> None:
    expelled = running.made.authority.issue(tmp_path / "gone", "gone", NODE)
    door = ("127.0.0.1", running.ports["door"])
    assert asyncio.run(peers.ask(door, expelled)).member.name == "one"
    expel = running.made.chorus("expel", "token", "expel", "gone")
    assert expel.wait() == 0, expel.log

    def refused() -> bool:
        try:
            asyncio.run(peers.ask(door, expelled))
        except (OSError, handshake.JoinRefused):
            return True
        return False

    assert eventually(refused), "the list of expelled nodes must reach the agents"
    said = f"gone ({expelled.member.node_id}) was expelled"
    assert eventually(lambda: said in running.agent.log), running.agent.log
    with _channel(running.ports["rank"], expelled, running) as channel:
        push = channel.stream_unary("/chorus.tensors.v1.Tensors/Push")
        with pytest.raises(grpc.RpcError) as caught:
            push(iter([b"x"]), timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == ""
    running.unharmed()


def test_a_wrong_token_is_refused_and_logged_on_both_sides(running: Running, tiny: Path, tmp_path: Path) -> None:
    stranger, port = running.made.agent("stranger", token=Token.new().text)
    stranger.wait_for("waiting on")
    server = running.made.serve(tiny, ["--peer", f"127.0.0.1:{port}", "--start-timeout", "12"])
    assert server.wait() == 1
    assert "is it the same token" in server.log
    assert "wrong token" in stranger.log
    assert not (running.made.folder / "state-stranger" / "identity" / "cert.pem").exists()


def _say(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.settimeout(3)
        answer = b""
        with contextlib.suppress(OSError):
            connection.sendall(data)
            while part := connection.recv(4096):
                answer += part
        return answer


def _coordinator(running: Running) -> Identity:
    return Identity(running.made.authority.folder / "coordinator")


def _channel(port: int, identity: Identity, running: Running) -> grpc.Channel:
    agent = Identity(running.made.folder / "state-one" / "identity").member.node_id
    options = [("grpc.ssl_target_name_override", server_name(agent))]
    return grpc.secure_channel(f"127.0.0.1:{port}", identity.channel_credentials(), options)


def _describe(running: Running, identity: Identity) -> grpc.StatusCode:
    with _channel(running.ports["control"], identity, running) as channel:
        return _code(lambda: agent_pb2_grpc.AgentStub(channel).Describe(agent_pb2.DescribeRequest(), timeout=60))


def _hello(running: Running, identity: Identity) -> grpc.StatusCode:
    with _channel(running.ports["rank"], identity, running) as channel:
        return _code(lambda: rank_pb2_grpc.RankStub(channel).Hello(rank_pb2.HelloRequest(version="x"), timeout=60))


def _code(call: Callable[[], object]) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK
