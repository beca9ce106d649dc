"""Several ranks from a hostfile, each started by hand, and what happens when one is lost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.localai.hand_started import Workers
from tests.localai.process import Backend
from tests.localai.table import message, state_name
from tests.support.ranks import Ranks
from tests.support.tiny_model import write_store_entry, write_tiny_model

TOKENS = 24


NAME = "tiny-by-name"
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A model store that has the tiny model by name, as workers that are told no path need it."""
    root = tmp_path_factory.mktemp("cache")
    write_store_entry(root, NAME, tiny_model)
    return root


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Backend]:
    with Backend(tmp_path_factory.mktemp("backend"), environment={"CHORUS_CACHE": str(store)}) as running:
        yield running


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


@pytest.fixture
def two(backend: Backend, tiny_model: Path) -> Backend:
    """Over two ranks; asked for again, it stays loaded."""
    backend.load(tiny_model, "ranks:2", "split:4,2", "tool_parser:hermes")
    return backend


def test_several_ranks_on_this_machine_need_no_hostfile(two: Backend, alone: str) -> None:
    assert two.text(Tokens=TOKENS, IgnoreEOS=True) == alone
    assert len(two.client.Status().memory.breakdown) == 2


def test_logprobs_and_tokens_work_over_two_ranks(two: Backend) -> None:
    request = {"Messages": [message("user", "What is the capital of France?")], "UseTokenizerTemplate": True}
    reply = two.client.Predict(**request, Tokens=4, IgnoreEOS=True, Logprobs=1, TopLogprobs=2)
    entries = json.loads(reply.logprobs)["content"]
    assert len(entries) == reply.tokens == 4
    assert b"".join(bytes(entry["bytes"]) for entry in entries).startswith(reply.message)
    tokens = two.client.TokenizeString(Prompt="The capital of France").tokens
    assert two.client.Detokenize(tokens=tokens).content == "The capital of France"


def test_a_forced_call_comes_out_as_a_call_over_two_ranks(two: Backend) -> None:
    request = {"Messages": [message("user", "What is the capital of France?")], "UseTokenizerTemplate": True}
    request |= {"Tools": json.dumps([LOOK_UP]), "ToolChoice": "required", "Tokens": 400}
    deltas = [delta for chunk in two.client.PredictStream(**request) for delta in chunk.chat_deltas]
    parts = [part for delta in deltas for part in delta.tool_calls if part.index == 0]
    assert [part.name for part in parts if part.name] == ["look_up"]
    assert json.loads("".join(part.arguments for part in parts))["city"] in ("Paris", "Rome")
    content = "".join(delta.content for delta in deltas)
    assert not any(mark in content for mark in ("<tool", "</tool"))


def test_a_cancelled_stream_makes_room_over_two_ranks(two: Backend, alone: str) -> None:
    stream = two.client.PredictStream(Prompt="The quick brown fox", Tokens=0, IgnoreEOS=True)
    next(stream)
    stream.cancel()
    assert two.text(Tokens=TOKENS, IgnoreEOS=True) == alone


def test_a_request_right_after_the_engine_was_lost_waits_for_the_next_one(two: Backend, alone: str) -> None:
    for _ in range(4):
        leader = next(p for p in two.children() if "chorus.engine" in p.cmdline())
        # Whether or not the loss has been noticed when the request comes, and also when it was under way.
        with ThreadPoolExecutor(1) as pool:
            early = pool.submit(two.text, Tokens=TOKENS, IgnoreEOS=True)
            leader.kill()
            assert two.text(Tokens=TOKENS, IgnoreEOS=True, timeout=100) == alone
            assert early.result(100) == alone


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
    # The leader tells it to, and does not wait for long.
    ranks.wait_for_log("rank1", "let go of its model")
    assert worker.memory_info().rss - before < (loaded - before) // 3
    backend.load(model, *options)
    assert backend.text(Tokens=TOKENS, IgnoreEOS=True) == text
    assert ranks.log("rank1").count("let go of its model") == 1


def test_workers_of_users_are_lost_come_back_and_serve_the_next_load(
    backend: Backend, alone: str, store: Path, tmp_path: Path
) -> None:
    with Workers(tmp_path, 3, CHORUS_CACHE=str(store)) as workers:
        workers.start(2)
        workers.start_as_localai(1)
        backend.load(NAME, f"hostfile:{workers.hostfile}", "split:3,2,1")
        assert backend.text(Tokens=TOKENS, IgnoreEOS=True) == alone
        assert len(backend.client.Status().memory.breakdown) == 3

        stream = backend.client.PredictStream(Prompt="The quick brown fox", Tokens=100, IgnoreEOS=True, timeout=120)
        for _ in range(3):
            next(stream)
        victim = workers.child(1)
        victim.kill()
        *_, last = stream
        assert last.tokens == 100, (last, backend.log, workers.logs())
        assert backend.text(Tokens=TOKENS, IgnoreEOS=True, timeout=120) == alone
        assert workers.child(1).pid != victim.pid

        assert backend.client.Free().success
        assert state_name(backend.client.Status().state) == "UNINITIALIZED"
        backend.load(NAME, f"hostfile:{workers.hostfile}")
        assert backend.text(Tokens=TOKENS, IgnoreEOS=True) == alone
