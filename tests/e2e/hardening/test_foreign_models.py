"""A rank that anybody may reach loads what its own store has by name, and runs nobody's code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from chorus.messages.proto import rank_pb2 as wire
from chorus.messages.proto import rank_pb2_grpc
from tests.cluster.harness import Process, cluster
from tests.support.ports import listening_ports
from tests.support.server import running
from tests.support.tiny_model import write_tiny_model

GROUP = "a stranger's"
PROGRAM = "chorus.rank --rank"
"""Beside it a compiler may run for a moment."""


@dataclass
class Rank:
    worker: Process
    place: str
    """Where a stranger's rank was started."""
    ran: Path
    """There once the code of the model has run."""

    def load(self, model: str, **fields: object) -> str:
        """What the rank answers; empty when it has loaded the model."""
        request = wire.LoadRequest(
            **{
                "model": model,
                "model_path": model,
                "split": [2, 2],
                "ranks": 2,
                "dtype": "auto",
                "memory_fraction": 0.5,
                "transport": "grpc",
                "group": GROUP,
                "addresses": [self.place, self.place],
                "step_timeout_seconds": 10,
                "weights": [1],
                **fields,
            }
        )
        with grpc.insecure_channel(self.place) as channel:
            try:
                list(rank_pb2_grpc.RankStub(channel).Load(request, timeout=120, wait_for_ready=True))
            except grpc.RpcError as error:
                return str(error.details())
        return ""


def _with_code(folder: Path, ran: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "house", "model_file": "house.py"}))
    code = f"open({str(ran)!r}, 'w').close()\nfrom mlx_lm.models.llama import Model, ModelArgs\n"
    (folder / "house.py").write_text(code)


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rank]:
    """Started by hand in a folder that has more than its store."""
    folder = tmp_path_factory.mktemp("worker")
    tiny = write_tiny_model(folder / "tiny", "llama", vocab_size=512, num_hidden_layers=4)
    ran = folder / "ran"
    with cluster(folder / "cluster") as made:
        here = made.folder / "rank1"
        shutil.copytree(tiny, here / "Downloads" / "evil")
        _with_code(here / "Downloads" / "evil", ran)
        for name in ("plain", "coded"):
            entry = folder / "cache" / "models" / name
            shutil.copytree(tiny, entry)
            (entry / "chorus.json").write_text(json.dumps({"source": "x", "sha256": "x", "size": 1, "mtime_ns": 1}))
        _with_code(folder / "cache" / "models" / "coded", ran)
        ports = listening_ports(2)
        hosts = made.folder / "hosts.json"
        hosts.write_text(json.dumps([f"127.0.0.1:{port}" for port in ports]))
        words = ["worker", "mlx-distributed", "--hostfile", str(hosts), "--rank", "1", "--backend", "grpc"]
        worker = made.chorus("rank1", *words, "--start-timeout", "0", CHORUS_CACHE=str(folder / "cache"))
        worker.wait_for("waits for its leader")
        with grpc.insecure_channel(f"127.0.0.1:{ports[1]}") as channel:
            stay = rank_pb2_grpc.RankStub(channel).Place(wire.PlaceRequest(group=GROUP, more=True))
            yield Rank(worker, f"127.0.0.1:{next(stay).port}", ran)


@pytest.mark.parametrize("model", ["Downloads/evil", "./Downloads/evil", "Downloads/../Downloads/evil"])
def test_a_folder_beside_the_rank_is_no_model_that_others_may_name(rank: Rank, model: str) -> None:
    """Finding 8."""
    answer = rank.load(model, trust_remote_code=True)
    assert not rank.ran.exists(), "code from outside the store was run"
    assert "Downloads" in answer


def test_a_stored_model_runs_its_own_code_only_where_the_owner_of_the_machine_said_so(rank: Rank) -> None:
    """Finding 8."""
    answer = rank.load("coded", trust_remote_code=True)
    assert not rank.ran.exists(), "a stranger had code run"
    assert "--trust-remote-code" in answer


def test_no_request_ends_the_rank(rank: Rank) -> None:
    """Finding 8: an error that nobody thought of is an answer like others."""
    (before,) = running(rank.worker.children(), PROGRAM)
    assert rank.load("plain", policies=["float32"])
    assert rank.load("plain", split=[], weights=[])
    assert rank.load("plain") == ""
    (after,) = running(rank.worker.children(), PROGRAM)
    assert before.pid == after.pid, rank.worker.log
