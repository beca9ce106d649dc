"""Several ranks from a hostfile, each started by hand, and what happens when one is lost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest

from tests.localai.process import Backend
from tests.localai.table import state_name
from tests.support.ranks import Ranks
from tests.support.tiny_model import write_tiny_model

TOKENS = 24


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with Ranks(tmp_path) as started:
        yield started


def write_hostfile(folder: Path, addresses: tuple[str, ...]) -> Path:
    file = folder / "hosts.json"
    file.write_text(json.dumps(addresses))
    return file


def wait_for_state(backend: Backend, state: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while state_name(backend.client.Status().state) != state:
        assert time.monotonic() < deadline, backend.log
        time.sleep(0.05)


@pytest.fixture(scope="module")
def alone(backend: Backend, tiny_model: Path) -> str:
    """What one rank answers."""
    backend.load(tiny_model)
    return backend.text(Tokens=TOKENS, IgnoreEOS=True)


def test_workers_may_start_before_and_after_the_server_asks(
    backend: Backend, alone: str, ranks: Ranks, tmp_path: Path, tiny_model: Path
) -> None:
    addresses = ranks.addresses(3)
    hostfile = write_hostfile(tmp_path, addresses)
    ranks.follower(2, addresses[2])
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(backend.load, tiny_model, f"hostfile:{hostfile}", "split:1,2,3")
        wait_for_state(backend, "BUSY")
        ranks.follower(1, addresses[1])
        load.result()
    assert backend.text(Tokens=TOKENS, IgnoreEOS=True) == alone
    assert sorted(backend.client.Status().memory.breakdown) == ["rank 0", "rank 1", "rank 2"]
    chunks = list(backend.client.PredictStream(Prompt="The quick brown fox", Tokens=TOKENS, IgnoreEOS=True))
    assert b"".join(chunk.message for chunk in chunks).decode() == alone


def test_several_ranks_on_this_machine_need_no_hostfile(backend: Backend, alone: str, tiny_model: Path) -> None:
    backend.load(tiny_model, "ranks:2", "split:4,2")
    assert backend.text(Tokens=TOKENS, IgnoreEOS=True) == alone
    assert len(backend.client.Status().memory.breakdown) == 2


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(60)


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


def test_a_rank_that_dies_while_idle_is_waited_for(
    backend: Backend, alone: str, ranks: Ranks, tmp_path: Path, tiny_model: Path
) -> None:
    addresses = ranks.addresses(2)
    follower = ranks.follower(1, addresses[1])
    backend.load(tiny_model, f"hostfile:{write_hostfile(tmp_path, addresses)}")
    kill(follower)
    wait_for_state(backend, "BUSY")
    assert backend.client.Health(timeout=120).message == b"OK"
    ranks.follower(1, addresses[1])
    assert backend.text(Tokens=TOKENS, IgnoreEOS=True) == alone


def test_a_request_right_after_the_engine_was_lost_waits_for_the_next_one(
    backend: Backend, alone: str, tiny_model: Path
) -> None:
    backend.load(tiny_model, "ranks:2")
    for _ in range(4):
        leader = next(p for p in backend.children() if "chorus.engine" in p.cmdline())
        # Whether or not the loss has been noticed when the request comes, and also when it was under way.
        with ThreadPoolExecutor(1) as pool:
            early = pool.submit(backend.text, Tokens=TOKENS, IgnoreEOS=True)
            leader.kill()
            assert backend.text(Tokens=TOKENS, IgnoreEOS=True, timeout=100) == alone
            assert early.exception() is None or early.exception().code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[union-attr]


def test_a_freed_model_leaves_the_memory_of_the_workers_who_can_load_it_again(
    backend: Backend, ranks: Ranks, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 4}
    model = write_tiny_model(tmp_path / "wide", "llama", vocab_size=512, num_hidden_layers=6, head_dim=64, **sizes)
    addresses = ranks.addresses(2)
    options = (f"hostfile:{write_hostfile(tmp_path, addresses)}", "split:2,4")
    worker = psutil.Process(ranks.follower(1, addresses[1]).pid)
    ranks.wait_for_log("rank1", "waits for its leader")
    before = worker.memory_info().rss
    backend.load(model, *options)
    text = backend.text(Tokens=TOKENS, IgnoreEOS=True)
    loaded = worker.memory_info().rss
    assert loaded - before > 100 << 20
    backend.client.Free()
    assert worker.memory_info().rss - before < (loaded - before) // 3
    backend.load(model, *options)
    assert backend.text(Tokens=TOKENS, IgnoreEOS=True) == text
    assert ranks.log("rank1").count("let go of its model") == 1
