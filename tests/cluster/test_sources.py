"""From whom a node copies, and how fast the link to it is."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chorus.cli.status import link_text
from chorus.cluster.agent.door import AgentDoor
from chorus.cluster.agent.process import PROTOCOLS
from chorus.cluster.coordinator.process import ConnectedNode, Nodes
from chorus.cluster.coordinator.sources import WantedFiles, find_sources, wire_files
from chorus.cluster.profile import links
from chorus.cluster.profile.links import (
    FIRST_PROBE_BYTES,
    LinkError,
    measure_all,
    measure_member,
    reach_member,
)
from chorus.cluster.status import node_status
from chorus.cluster.transfer.share import FILES, PROBE_BYTES, FileServer, SharedModel, share_folder
from chorus.cluster.transfer.sources import FileSource, choose_sources, lacking, streams
from chorus.messages.proto import agent_pb2 as wire
from chorus.security.authority import Authority
from chorus.security.member import NODE
from tests.cluster.harness import Cluster
from tests.support.ports import listening_port

ALL = frozenset({"a", "b"})


def test_a_source_with_every_file_comes_before_one_with_a_part() -> None:
    part, whole = FileSource("10.0.0.2:1", frozenset({"a"})), FileSource("10.0.0.3:1", ALL)
    assert choose_sources({"10.0.0.9:1": ALL}, [part, whole]) == {"10.0.0.9:1": (whole, part)}


def test_nodes_that_start_together_spread_over_the_sources() -> None:
    sources = [FileSource("", ALL), FileSource("10.0.0.2:1", ALL)]
    doors = [f"10.0.0.{number}:1" for number in range(3, 9)]
    first = [found[0].address for found in choose_sources(dict.fromkeys(doors, ALL), sources).values()]
    assert sorted(first) == [""] * 3 + ["10.0.0.2:1"] * 3


def test_nobody_copies_from_itself_or_from_whom_has_nothing() -> None:
    sources = [FileSource("10.0.0.2:1", ALL), FileSource("10.0.0.3:1", frozenset({"c"}))]
    assert choose_sources({"10.0.0.2:1": ALL}, sources) == {"10.0.0.2:1": ()}


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1"])
def test_an_address_of_one_machine_is_told_to_that_machine_only(address: str) -> None:
    source = FileSource(address, ALL)
    chosen = choose_sources({"10.0.0.2:1": ALL, "127.0.0.1:2": ALL}, [source])
    assert chosen == {"10.0.0.2:1": (), "127.0.0.1:2": (source,)}


def test_connections_take_turns_over_the_sources_and_the_rest_stand_by() -> None:
    one, two, three, four = (FileSource(f"10.0.0.{number}:1", ALL) for number in range(4))
    assert streams([one, two], 3) == ([one, two, one], [])
    assert streams([one, two, three, four], 3) == ([one, two, three], [four])
    assert streams([], 3) == ([], [])


def test_a_file_that_no_source_has_is_known_before_anything_is_copied() -> None:
    assert lacking(["a", "b", "c"], [FileSource("x", frozenset({"a"})), FileSource("y", frozenset({"c"}))]) == ["b"]


def test_a_node_copies_from_another_node_that_has_the_files(nodes: Cluster, tiny: Path) -> None:
    """The machine that serves is of no use here: all that arrives comes from the other node."""
    share = share_folder("tiny", tiny)
    shutil.copytree(tiny, nodes.folder / "cache-one" / "copies" / share.digest)
    one, first = nodes.agent("one", CHORUS_CACHE=str(nodes.folder / "cache-one"))
    two, second = nodes.agent("two", CHORUS_CACHE=str(nodes.folder / "cache-two"))
    nobody = listening_port()

    async def copy() -> Path:
        async with _joined(nodes, first, second) as (holder, taker):
            wanted = [WantedFiles(taker, share.digest, share.files)]
            (sources,) = await find_sources([holder, taker], wanted, "tiny", lambda node: node.rank_address(nobody))
            assert {source.address for source in sources} == {holder.door, taker.rank_address(nobody)}
            return await _spawned(taker, share, sources)

    path = asyncio.run(copy())
    assert path.is_relative_to(nodes.folder / "cache-two"), two.log
    for file in share.files:
        assert (path / file.name).read_bytes() == (tiny / file.name).read_bytes()
    assert "copied" in two.log
    assert "Traceback" not in one.log


def test_files_that_only_look_the_same_are_not_offered(nodes: Cluster, tiny: Path) -> None:
    """Another fine-tune of the model: same names, same sizes."""
    share = share_folder("tiny", tiny)
    other = nodes.folder / "cache-one" / "copies" / share.digest
    shutil.copytree(tiny, other)
    weights = other / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    _, first = nodes.agent("one", CHORUS_CACHE=str(nodes.folder / "cache-one"))

    async def offered() -> list[str]:
        async with _joined(nodes, first) as (holder,):
            request = wire.OfferRequest(model="tiny", share=share.digest, files=wire_files(share.files))
            return list((await holder.stub.Offer(request, timeout=120)).files)

    found = asyncio.run(offered())
    assert "config.json" in found
    assert weights.name not in found


def test_the_bandwidth_of_a_link_is_measured_once_when_a_node_comes(nodes: Cluster) -> None:
    _, port = nodes.agent("one")

    async def status() -> dict[str, object]:
        async with _joined(nodes, port) as (node,), asyncio.timeout(60):
            while node.bandwidth is None:
                await asyncio.sleep(0.02)
            return node_status(node)

    began = time.monotonic()
    found = asyncio.run(status())
    measured = found["bandwidth_bytes_per_second"]
    assert isinstance(measured, int)
    least = FIRST_PROBE_BYTES / (time.monotonic() - began)
    assert measured >= int(least), "so many bytes at least came in less than all this time"
    assert " MB/s" in link_text(found)


def test_a_link_that_was_not_measured_yet_says_so() -> None:
    assert link_text({"round_trip_ms": 0.42, "bandwidth_bytes_per_second": None}) == "0.4 ms, not measured yet"
    assert link_text({"round_trip_ms": 12.0, "bandwidth_bytes_per_second": 1_250_000_000}) == "12.0 ms, 1,250 MB/s"


def test_measuring_a_link_is_bounded_and_an_unreachable_one_is_named(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority")
    own = authority.issue(tmp_path / "holder", "studio", NODE)
    asker = authority.issue(tmp_path / "asker", "mini", NODE)
    files = FileServer()
    with contextlib.closing(AgentDoor("127.0.0.1", 0)) as door:
        door.set(own.server_context(PROTOCOLS), own, None, {FILES: files.serve})
        door.start()
        assert measure_member(("127.0.0.1", door.port), own.member.node_id, asker) > 0
        assert files.probed_bytes < 2 * PROBE_BYTES
    nobody = rf"cannot measure the link to 127.0.0.1:{door.port}: .*is it up and its port open"
    with pytest.raises(LinkError, match=nobody):
        measure_member(("127.0.0.1", door.port), own.member.node_id, asker)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(LinkError, match="timed out"):
        measure_member(silent.getsockname(), own.member.node_id, asker, timeout=0.2)


def test_all_addresses_of_a_member_are_tried_at_once_and_only_its_own_door_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "REACH_SECONDS", 60.0)  # nobody waits for so long: one of them answers
    authority = Authority.create(tmp_path / "authority")
    own = authority.issue(tmp_path / "holder", "studio", NODE)
    other = authority.issue(tmp_path / "other", "another", NODE)
    asker = authority.issue(tmp_path / "asker", "mini", NODE)
    with contextlib.ExitStack() as cleanup:
        doors = [cleanup.enter_context(contextlib.closing(AgentDoor("127.0.0.1", 0))) for _ in range(2)]
        for door, who in zip(doors, (own, other), strict=True):
            door.set(who.server_context(PROTOCOLS), who, None, {FILES: FileServer().serve})
            door.start()
        silent = cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))
        addresses = [silent.getsockname(), *(("127.0.0.1", door.port) for door in doors)]
        dead, there, not_it = reach_member(addresses, own.member.node_id, asker)
        assert dead.problem == "no answer"
        assert (there.problem, there.own_ip) == ("", "127.0.0.1")
        assert there.round_trip > 0
        assert not_it.problem
        (measured,) = measure_all(addresses[1:2], own.member.node_id, asker)
        assert measured.bandwidth is not None
        assert measured.bandwidth > 0


@contextlib.asynccontextmanager
async def _joined(made: Cluster, *ports: int) -> AsyncIterator[list[ConnectedNode]]:
    identity = made.authority.coordinator("test")
    nodes = Nodes(made.authority, identity, "test", [("127.0.0.1", port) for port in ports], discover=False)
    await nodes.start()
    try:
        found = await nodes.gather(len(ports), (), 120)
        yield sorted(found, key=lambda node: ports.index(node.address[1]))
    finally:
        await nodes.stop()


async def _spawned(node: ConnectedNode, share: SharedModel, sources: tuple[FileSource, ...]) -> Path:
    session = uuid.uuid4().hex
    request = wire.SpawnRequest(
        session=session,
        rank=1,
        model="tiny",
        share=share.digest,
        files=wire_files(share.files),
        sources=[wire.FileSource(address=source.address, files=sorted(source.files)) for source in sources],
    )
    async for progress in node.stub.Spawn(request, timeout=120):
        if progress.HasField("started"):
            await node.stub.Kill(wire.KillRequest(session=session), timeout=60)
            return Path(progress.started.model_path)
    raise AssertionError("the agent started nothing")
