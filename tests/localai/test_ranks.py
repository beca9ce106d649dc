"""Several ranks from a hostfile, each started by hand, and what happens when one is lost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.localai.process import Backend
from tests.localai.table import state_name
from tests.support.ranks import Ranks

TOKENS = 24


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with Ranks(tmp_path) as started:
        yield started


def write_hostfile(folder: Path, addresses: tuple[str, ...]) -> Path:
    file = folder / "hosts.json"
    file.write_text(json.dumps(addresses))
    return file


@pytest.fixture(scope="module")
def alone(backend: Backend, tiny_model: Path) -> str:
    """What one rank answers."""
    backend.load(tiny_model)
    return backend.text(Tokens=TOKENS, IgnoreEOS=True)


@pytest.mark.parametrize(("count", "order"), [(2, (0, 1)), (3, (2, 0, 1))])
def test_workers_may_start_in_any_order(
    backend: Backend, alone: str, ranks: Ranks, tmp_path: Path, tiny_model: Path, count: int, order: tuple[int, ...]
) -> None:
    addresses = ranks.addresses(count)
    hostfile = write_hostfile(tmp_path, addresses)
    with ThreadPoolExecutor(1) as pool:
        for rank in order:
            if rank:
                ranks.follower(rank, addresses[rank])
            else:
                load = pool.submit(backend.load, tiny_model, f"hostfile:{hostfile}")
        load.result()
    assert backend.text(Tokens=TOKENS, IgnoreEOS=True) == alone
    memory = backend.client.Status().memory.breakdown
    assert sorted(memory) == [f"rank {rank}" for rank in range(count)]
    chunks = list(backend.client.PredictStream(Prompt="The quick brown fox", Tokens=TOKENS, IgnoreEOS=True))
    assert b"".join(chunk.message for chunk in chunks).decode() == alone
    # The workers stay when the model is freed, and serve the next one.
    assert backend.client.Free().success
    if order == (0, 1):
        backend.load(tiny_model, f"hostfile:{hostfile}", "split:1,5")
        assert backend.text(Tokens=TOKENS, IgnoreEOS=True) == alone


def test_several_ranks_on_this_machine_need_no_hostfile(backend: Backend, alone: str, tiny_model: Path) -> None:
    backend.load(tiny_model, "ranks:2", "split:4,2")
    assert backend.text(Tokens=TOKENS, IgnoreEOS=True) == alone
    assert len(backend.client.Status().memory.breakdown) == 2


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(10)


def test_a_worker_that_is_not_there_is_named_within_the_time(
    backend: Backend, ranks: Ranks, tmp_path: Path, tiny_model: Path
) -> None:
    addresses = ranks.addresses(3)
    ranks.follower(1, addresses[1])
    result = backend.client.LoadModel(
        Model=str(tiny_model),
        Options=[f"hostfile:{write_hostfile(tmp_path, addresses)}"],
        EngineArgs=json.dumps({"start_timeout_seconds": 5}),
    )
    assert not result.success
    assert f"rank 2 at {addresses[2]} did not answer" in result.message
    assert state_name(backend.client.Status().state) == "ERROR"
    assert backend.children() == []


def test_a_worker_of_another_version_is_named(backend: Backend, ranks: Ranks, tmp_path: Path, tiny_model: Path) -> None:
    addresses = ranks.addresses(2)
    ranks.follower(1, addresses[1], version="9.9.9")
    result = backend.client.LoadModel(
        Model=str(tiny_model), Options=[f"hostfile:{write_hostfile(tmp_path, addresses)}"]
    )
    assert not result.success
    assert f"rank 1 at {addresses[1]} runs Chorus 9.9.9" in result.message


def test_more_ranks_than_layers_are_refused(backend: Backend, ranks: Ranks, tmp_path: Path, tiny_model: Path) -> None:
    result = backend.client.LoadModel(
        Model=str(tiny_model), Options=[f"hostfile:{write_hostfile(tmp_path, ranks.addresses(7))}"]
    )
    assert not result.success
    assert "7 ranks" in result.message


def wait_for_state(backend: Backend, state: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while state_name(backend.client.Status().state) != state:
        assert time.monotonic() < deadline, backend.log
        time.sleep(0.05)


def test_a_rank_that_dies_while_idle_is_waited_for(
    backend: Backend, alone: str, ranks: Ranks, tmp_path: Path, tiny_model: Path
) -> None:
    addresses = ranks.addresses(2)
    follower = ranks.follower(1, addresses[1])
    backend.load(tiny_model, f"hostfile:{write_hostfile(tmp_path, addresses)}")
    kill(follower)
    wait_for_state(backend, "BUSY")
    assert backend.client.Health(timeout=1).message == b"OK"
    ranks.follower(1, addresses[1])
    assert backend.text(Tokens=TOKENS, IgnoreEOS=True) == alone
