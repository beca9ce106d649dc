"""jaccl up to the library's call: any form of hostfile, the leader's request, the variables that MLX reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from chorus.config.engine import EngineSpec
from chorus.config.hostfile import HostfileError, parse_hostfile
from chorus.engine.lifecycle.group import _load_request
from chorus.engine.ranks.followers import Follower
from chorus.messages.load import LoadRequest
from chorus.planning.layout import Layout
from chorus.rank.join import connect
from chorus.transport.links import Inbox
from chorus.transport.meeting import CannotJoin

FIRST = ("JACCL_RANK", "JACCL_IBV_DEVICES", "JACCL_COORDINATOR", "JACCL_RING")
"""Names that MLX believes before the others."""
VARIABLES = (
    *("MLX_RANK", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "MLX_JACCL_RING", "MLX_METAL_FAST_SYNCH"),
    *FIRST,
)
ROWS = [[None, "rdma_en2"], ["rdma_en5", None]]
SEVERAL = [[None, ["rdma_en2", "rdma_en3"]], [["rdma_en5", "rdma_en6"], None]]
AROUND = [
    [None, "rdma_en2", None, "rdma_en3"],
    ["rdma_en3", None, "rdma_en2", None],
    [None, "rdma_en3", None, "rdma_en2"],
    ["rdma_en2", None, "rdma_en3", None],
]
"""Four Macs in a ring, as `mlx.distributed_config --backend jaccl-ring` writes it."""


def hosts(rows: list[list[Any]]) -> list[dict[str, Any]]:
    return [{"ssh": f"mac{rank}", "ips": [f"10.0.0.{rank}"], "rdma": row} for rank, row in enumerate(rows)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What MLX would have found, each time a group was asked for."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    made: list[dict[str, Any]] = []

    def init(**options: Any) -> object:
        seen = {name: os.environ.get(name) for name in VARIABLES}
        made.append({**options, **seen, "matrix": json.loads(Path(str(seen["MLX_IBV_DEVICES"])).read_text())})
        return SimpleNamespace(rank=lambda: 0, size=lambda: 2)

    monkeypatch.setattr(mx.distributed, "init", init)
    yield made
    for name in VARIABLES:
        os.environ.pop(name, None)


def request_of(content: Any, **more: Any) -> LoadRequest:
    """The way from a hostfile to what the leader sends to every rank, through the file that it is started with."""
    rows = tuple(tuple(host.rdma) for host in parse_hostfile(content).hosts)
    spec = EngineSpec(
        address="unix:/nowhere",
        model_path=Path("model"),
        ranks=tuple(f"127.0.0.1:{5000 + rank}" for rank in range(len(rows))),
        parallel="tensor",
        transport="jaccl",
        rdma_devices=rows,
        **more,
    )
    spec = EngineSpec.model_validate_json(spec.model_dump_json())
    followers = [Follower(rank, address) for rank, address in enumerate(spec.ranks) if rank]
    return _load_request(spec, followers, Layout((4,), (1,) * len(rows)), 5100, 5101, b"")


@pytest.mark.parametrize(
    ("content", "matrix"),
    [
        (ROWS, ROWS),
        (hosts(ROWS), ROWS),
        ({"backend": "jaccl", "hosts": hosts(ROWS), "envs": []}, ROWS),
        ({"backend": "jaccl", "hosts": ROWS}, ROWS),
        (hosts(SEVERAL), SEVERAL),
    ],
    ids=["matrix", "hosts", "file", "matrix in a file", "several devices"],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_every_form_of_hostfile_reaches_the_library(
    calls: list[dict[str, Any]], content: Any, matrix: Any, rank: int
) -> None:
    connect(rank, request_of(content, coordinator="10.0.0.1:32323"), Inbox())
    (call,) = calls
    assert (call["backend"], call["strict"]) == ("jaccl", True)
    assert call["matrix"] == matrix
    assert call["MLX_RANK"] == str(rank)
    assert call["MLX_JACCL_COORDINATOR"] == "10.0.0.1:32323"
    assert call["MLX_METAL_FAST_SYNCH"] is None


def test_an_unreliable_switch_is_passed_on_where_somebody_sets_it_and_warned_of(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLX_METAL_FAST_SYNCH", "1")
    connect(0, request_of(ROWS), Inbox())
    assert calls[0]["MLX_METAL_FAST_SYNCH"] == "1"
    assert "unreliable" in caplog.text


def refusal(content: Any) -> str:
    try:
        parse_hostfile(content)
    except HostfileError as error:
        return str(error)
    return ""


def test_a_ring_names_no_devices_but_those_of_neighbours() -> None:
    assert refusal({"backend": "jaccl-ring", "hosts": hosts(AROUND)}) == ""
    broken = [*AROUND[:3], [None, None, "rdma_en3", None]]
    assert "hosts[3].rdma[0]: expected an RDMA device" in refusal({"hosts": hosts(broken)})


@pytest.mark.parametrize(("content", "ring"), [(ROWS, None), (SEVERAL, "1"), (AROUND, "1")])
def test_only_a_ring_is_called_one(calls: list[dict[str, Any]], content: Any, ring: str | None) -> None:
    assert refusal(content) == ""
    connect(1, request_of(content), Inbox())
    assert calls[0]["MLX_JACCL_RING"] == ring


def test_what_a_shell_has_left_over_does_not_part_the_ranks(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (*FIRST, "MLX_JACCL_RING", "MLX_RANK"):
        monkeypatch.setenv(name, "7")
    connect(1, request_of(ROWS), Inbox())
    assert [name for name in (*FIRST, "MLX_JACCL_RING") if calls[0][name] is not None] == []
    assert calls[0]["MLX_RANK"] == "1"
    assert "JACCL_RANK=7 is ignored" in caplog.text


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("[jaccl] Changing queue pair to RTR failed with errno 22", "no member of a Thunderbolt Bridge"),
        ("[jaccl] No IPv4-mapped GID for this device. Thunderbolt RDMA", "an IPv4 address of its own"),
        ("[jaccl] Changing queue pair to RTR failed with errno 60", "the other end of a cable did not answer"),
        ("[jaccl] Changing queue pair to INIT failed with errno 16", "only a restart of this Mac"),
        ("[jaccl] Creating the queue pair failed with 'Resource busy (16)'.", "only a restart of this Mac"),
        ("[jaccl] Couldn't allocate protection domain", "only a restart of this Mac"),
        ("[jaccl] Couldn't connect (error: 60)", "best on Ethernet"),
        ("[jaccl] Could not find device rdma_en9 (3 available)", "`ibv_devices` lists today's"),
    ],
)
def test_what_the_library_says_comes_with_what_to_do(monkeypatch: pytest.MonkeyPatch, said: str, remedy: str) -> None:
    def init(**_: Any) -> object:
        raise RuntimeError(said)

    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(mx.distributed, "init", init)
    with pytest.raises(CannotJoin, match=remedy):
        connect(0, request_of(ROWS), Inbox())


def test_without_a_coordinator_the_ranks_meet_where_the_leader_is(calls: list[dict[str, Any]]) -> None:
    connect(1, request_of(ROWS), Inbox())
    host, _, port = calls[0]["MLX_JACCL_COORDINATOR"].rpartition(":")
    assert host == "127.0.0.1"
    assert 0 < int(port) < 65536


def test_the_file_of_devices_is_gone_once_the_group_has_formed(calls: list[dict[str, Any]]) -> None:
    connect(0, request_of(ROWS), Inbox())
    assert not Path(calls[0]["MLX_IBV_DEVICES"]).exists()


def test_jaccl_without_devices_names_what_is_missing(calls: list[dict[str, Any]]) -> None:
    with pytest.raises(CannotJoin, match="needs the RDMA devices of every rank"):
        connect(0, LoadRequest(transport="jaccl", ranks=2, split=(4,), weights=(1, 1)), Inbox())
    assert calls == []


def test_where_the_library_has_no_jaccl_the_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> object:
        raise RuntimeError("Cannot initialize jaccl distributed backend.")

    monkeypatch.setattr(mx.distributed, "init", init)
    with pytest.raises(CannotJoin, match="the jaccl group did not form: Cannot initialize jaccl"):
        connect(0, request_of(ROWS), Inbox())
    for name in VARIABLES:
        os.environ.pop(name, None)
