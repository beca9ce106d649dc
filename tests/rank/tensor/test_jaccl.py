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
from chorus.config.hostfile import parse_hostfile
from chorus.engine.followers import Follower
from chorus.engine.group import _load_request
from chorus.messages.load import LoadRequest
from chorus.planning.layout import Layout
from chorus.rank.join import connect
from chorus.transport.links import Inbox
from chorus.transport.meeting import CannotJoin

VARIABLES = ("MLX_RANK", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "MLX_METAL_FAST_SYNCH")
ROWS = [[None, "rdma_en2"], ["rdma_en5", None]]
SEVERAL = [[None, ["rdma_en2", "rdma_en3"]], [["rdma_en5", "rdma_en6"], None]]


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
        ranks=("127.0.0.1:5000", "127.0.0.1:5001"),
        parallel="tensor",
        transport="jaccl",
        rdma_devices=rows,
        **more,
    )
    spec = EngineSpec.model_validate_json(spec.model_dump_json())
    return _load_request(spec, [Follower(1, spec.ranks[1])], Layout((4,), (1, 1)), 5100, 5101)


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
    assert call["MLX_METAL_FAST_SYNCH"] == "1"


def test_without_a_coordinator_the_ranks_meet_where_the_leader_is(calls: list[dict[str, Any]]) -> None:
    connect(1, request_of(ROWS), Inbox())
    host, _, port = calls[0]["MLX_JACCL_COORDINATOR"].rpartition(":")
    assert host == "127.0.0.1"
    assert 0 < int(port) < 65536


def test_the_file_of_devices_is_gone_once_the_group_has_formed(calls: list[dict[str, Any]]) -> None:
    connect(0, request_of(ROWS), Inbox())
    assert not Path(calls[0]["MLX_IBV_DEVICES"]).exists()


def test_jaccl_without_devices_names_what_is_missing(calls: list[dict[str, Any]]) -> None:
    with pytest.raises(CannotJoin, match="needs the RDMA devices of every rank: give a hostfile"):
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
