"""Nodes as a coordinator keeps them: found at any of their addresses, renewed in time, forgotten when they are gone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest

from chorus.cluster.agent import peers
from chorus.cluster.coordinator import process
from chorus.cluster.coordinator.process import MAX_ANNOUNCED, Nodes, NodesMissing, agent_peers
from chorus.cluster.discovery import Announcement
from chorus.messages.proto import agent_pb2 as wire
from chorus.platform.process.timing import DEFAULTS, WatchTimes
from chorus.security.enrol import Card
from chorus.security.handshake import JoinRefused
from chorus.security.identity import Identity, make_request, own_key
from chorus.security.member import NODE, Member
from tests.cluster.harness import Cluster, Process, cluster, eventually, free_block

SECONDS = 120.0


@contextlib.asynccontextmanager
async def _coordinator(made: Cluster, *ports: int, timing: WatchTimes = DEFAULTS) -> AsyncIterator[Nodes]:
    """One that hears announcements from the test alone."""
    identity = made.authority.coordinator("test")
    addresses = [("127.0.0.1", port) for port in ports]
    nodes = Nodes(made.authority, identity, "test", addresses, discover=False, timing=timing)
    await nodes.start()
    try:
        yield nodes
    finally:
        await nodes.stop()


def _announced(made: Cluster, node_id: str, port: int, *addresses: str) -> Announcement:
    return Announcement(node_id, node_id, "1", "", made.token.tag, addresses or ("127.0.0.1",), port)


async def _until(check: object) -> None:
    async with asyncio.timeout(SECONDS):
        while not check():  # type: ignore[operator]
            await asyncio.sleep(0.02)


@dataclass
class Agent:
    process: Process
    port: int


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("members")) as made:
        yield made


@pytest.fixture(scope="module")
def agent(nodes: Cluster) -> Agent:
    """The one node of all tests here. It is there first: who is announced and not there is tried ever more rarely."""
    made = Agent(*nodes.agent("one"))
    made.process.wait_for("waiting on")
    return made


def test_a_node_is_found_at_whichever_of_its_addresses_answers_and_stale_announcements_hold_up_nobody(
    nodes: Cluster, agent: Agent
) -> None:
    """The stale ones lead to a port where somebody takes the connection and never says a word."""
    port = agent.port

    async def found() -> tuple[str, tuple[str, int]]:
        with socket.create_server(("127.0.0.1", 0), backlog=2 * MAX_ANNOUNCED) as silent:
            async with _coordinator(nodes) as coordinator:
                for number in range(2 * MAX_ANNOUNCED):
                    if number == MAX_ANNOUNCED // 2:
                        coordinator._heard(_announced(nodes, "real", port, "127.99.0.1", "127.99.0.2", "127.0.0.1"))
                    coordinator._heard(_announced(nodes, f"stale-{number}", silent.getsockname()[1]))
                (node,) = await coordinator.gather(1, (), SECONDS)
                assert len(coordinator._keepers) <= MAX_ANNOUNCED
                return node.name, node.address

    assert asyncio.run(found()) == ("one", ("127.0.0.1", port))


def test_a_drain_is_told_once_also_where_somebody_had_asked_for_the_state_before(
    nodes: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(process, "tell", lambda kind, **_: told.append(kind.name))

    async def drained() -> None:
        async with _coordinator(nodes, agent.port) as coordinator:
            (node,) = await coordinator.gather(1, (), SECONDS)
            for draining, event in ((True, "node_drains"), (False, "node_returns")):
                # What a refresh brings, before the next heartbeat has.
                node.state = wire.Node.FromString(node.state.SerializeToString())
                node.state.draining = draining
                await node.stub.Drain(wire.DrainRequest(draining=draining), timeout=SECONDS)
                await _until(lambda event=event: event in told)

    asyncio.run(drained())
    assert told[:3] == ["node_joined", "node_drains", "node_returns"]


def test_an_address_that_leads_back_to_this_machine_does_not_hide_the_node(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker and virtual machines give every host a bridge of the same number: our own door answers there first."""
    answered: list[str] = []

    async def ask(address: tuple[str, int], identity: Identity) -> peers.Met:
        ours = address[0] == "172.17.0.1"
        if not ours:
            await _until(lambda: "172.17.0.1" in answered)
        answered.append(address[0])
        member = Member("mini", "test" if ours else "mini-id", NODE)
        told = {"member": member, "card": Card(50150, 50151), "own_ip": "192.168.1.4", "ip": address[0]}
        return peers.Met(**{field.name: told[field.name] for field in dataclasses.fields(peers.Met)})  # type: ignore[arg-type]

    async def connected() -> list[str]:
        stayed: list[str] = []

        async def stay(address: tuple[str, int], met: peers.Met, addresses: tuple[tuple[str, int], ...]) -> None:
            stayed.append(f"{met.member.node_id} at {address[0]}")

        async with _coordinator(nodes) as coordinator:
            monkeypatch.setattr(agent_peers, "ask", ask)
            monkeypatch.setattr(coordinator, "_stay", stay)
            coordinator._heard(_announced(nodes, "mini-id", 50150, "172.17.0.1", "192.168.1.5"))
            await _until(lambda: stayed or len(answered) > 3)
        return stayed[:1]

    assert asyncio.run(connected()) == ["mini-id at 192.168.1.5"]


def test_a_node_that_ends_while_its_door_is_open_stays_a_problem(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its door says who it is, and nothing answers behind it."""

    async def problems() -> list[str]:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.settimeout(SECONDS)

            async def ask(address: tuple[str, int], identity: Identity) -> peers.Met:
                card = Card(50150, silent.getsockname()[1])
                return peers.Met(Member("mini", "mini-id", NODE), card, "127.0.0.1", "127.0.0.1")

            async with _coordinator(nodes) as coordinator:
                monkeypatch.setattr(agent_peers, "ask", ask)
                coordinator._tell(("127.0.0.1", 50150), "the agent ended")
                coordinator._heard(_announced(nodes, "mini-id", 50150, "127.0.0.1"))
                connection, _ = await asyncio.to_thread(silent.accept)
                with connection:
                    return list(coordinator.problems().values())

    assert asyncio.run(problems()) == ["the agent ended"]


@pytest.mark.linux("a second loopback address")
def test_a_dead_address_keeps_nobody_from_being_let_in(nodes: Cluster) -> None:
    """It takes the connection and never says a word, for longer than anybody waits."""
    port = free_block()
    with socket.create_server(("127.0.0.2", port)):
        newcomer, _ = nodes.agent("two", port=port)
        newcomer.wait_for("waiting on")

        async def found() -> list[str]:
            async with _coordinator(nodes) as coordinator:
                coordinator._heard(_announced(nodes, "real", port, "127.0.0.2", "127.0.0.1"))
                (node,) = await coordinator.gather(1, (), SECONDS)
                return [f"{host}: {why}" for (host, _), why in coordinator.problems().items()] + [node.address[0]]

        assert asyncio.run(found()) == ["127.0.0.1"]


def test_a_node_behind_a_local_name_is_used_by_the_address_that_answered(
    nodes: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system resolves such names, gRPC's own resolver does not, and MLX's groups take numbers alone."""
    port = agent.port
    real = socket.getaddrinfo

    def resolve(host: object, *more: object, **options: object) -> object:
        return real("127.0.0.1" if host == "studio.local" else host, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    async def found() -> list[tuple[str, int]]:
        identity = nodes.authority.coordinator("test")
        coordinator = Nodes(nodes.authority, identity, "test", [("studio.local", port)], discover=False)
        await coordinator.start()
        try:
            with contextlib.suppress(NodesMissing):
                await coordinator.gather(1, (), SECONDS)
            return [node.address for node in coordinator.present]
        finally:
            await coordinator.stop()

    assert asyncio.run(found()) == [("127.0.0.1", port)]


def test_a_node_sends_heartbeats_as_often_as_its_coordinator_wants_them(nodes: Cluster, agent: Agent) -> None:

    async def heard() -> list[float]:
        async with _coordinator(nodes, agent.port, timing=WatchTimes(heartbeat_seconds=0.01)) as coordinator:
            (node,) = await coordinator.gather(1, (), SECONDS)
            moments = [node.heard]

            def twenty() -> bool:
                moments.extend({node.heard} - {moments[-1]})
                return len(moments) >= 20

            await _until(twenty)
            return moments

    moments = asyncio.run(heard())
    assert min(later - earlier for earlier, later in pairwise(moments)) < DEFAULTS.heartbeat_seconds / 2


def test_a_certificate_is_renewed_before_it_runs_out_under_the_name_of_now(nodes: Cluster, agent: Agent) -> None:
    """The new one is shown once nobody is connected that saw the other."""
    port = agent.port
    folder = nodes.folder / "state-one" / "identity"

    async def join() -> None:
        async with _coordinator(nodes, port) as coordinator:
            await coordinator.gather(1, (), SECONDS)

    asyncio.run(join())
    agent.process.stop()
    request = make_request(own_key(folder), "one")
    # It began a day ago, for the sake of clocks that are behind.
    (folder / "cert.pem").write_bytes(nodes.authority.sign(request, "one", life=datetime.timedelta(days=2)))
    aged = Identity(folder)
    assert aged.is_due("one")

    agent.process, _ = nodes.agent("one", "--name", "uno", port=port)
    agent.process.wait_for("one is in the cluster")

    async def renewed() -> str:
        async with _coordinator(nodes, port) as coordinator:
            (node,) = await coordinator.gather(1, (), SECONDS)
            assert node.name == "one", "the certificate says its name"
            await _until(lambda: not aged.is_due("uno"))
            assert coordinator.present == [node], "whoever is connected stays so"
            return node.node_id

    same = asyncio.run(renewed())
    agent.process.wait_for("showing the new certificate")
    # It says so first: its control port is closed for a moment then, and opened again.
    assert eventually(lambda: asyncio.run(_shown(nodes, port)) == aged.certificate), agent.process.log
    assert (aged.member.node_id, aged.member.name) == (same, "uno")
    asyncio.run(join())


def test_an_announcement_that_is_over_is_followed_no_more(nodes: Cluster, agent: Agent) -> None:
    """The last test: its agent is gone afterwards."""

    async def left() -> int:
        async with _coordinator(nodes) as coordinator:
            coordinator._heard(_announced(nodes, "hint", agent.port))
            await coordinator.gather(1, (), SECONDS)
            coordinator._unheard("hint")
            assert coordinator.present, "a node that is there stays, announced or not"
            await asyncio.to_thread(agent.process.stop)
            await _until(lambda: not coordinator._keepers)
            return len(coordinator.problems())

    assert asyncio.run(left()) == 0


async def _shown(made: Cluster, port: int) -> bytes:
    """By the control port; nothing while that is closed."""
    identity = made.authority.coordinator("test")
    try:
        met = await peers.ask(("127.0.0.1", port), identity)
        pem = await asyncio.to_thread(_certificate_at, met.card.control_port, identity)
    except (OSError, JoinRefused):
        return b""
    return pem.encode()


def _certificate_at(port: int, identity: Identity) -> str:
    context = identity.client_context(["h2"], named=False)
    with socket.create_connection(("127.0.0.1", port), 30) as plain, context.wrap_socket(plain) as secure:
        found = secure.getpeercert(binary_form=True)
        assert found
        return ssl.DER_cert_to_PEM_cert(found)
