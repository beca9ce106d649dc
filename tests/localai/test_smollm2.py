"""The real model over one, two and three ranks, with workers as their users start them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from tests.localai.process import Backend
from tests.localai.table import message, state_name
from tests.support import failure_logs
from tests.support.ports import listening_port

MODEL = "smollm2-135m"
WORKER = [sys.executable, "-c", "from chorus.cli.worker import app; app()", "mlx-distributed"]
QUESTION: dict[str, Any] = {
    "Messages": [message("user", "What is the capital of France?")],
    "UseTokenizerTemplate": True,
    "Tokens": 12,
    "ModelIdentity": MODEL,
}


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


class Workers:
    """`chorus worker mlx-distributed`, one process each, with its rank as a child."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.hostfile = folder / f"hosts-{ranks}.json"
        self.hostfile.write_text(json.dumps([f"127.0.0.1:{listening_port()}" for _ in range(ranks)]))
        self._folder = folder
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, rank: int) -> None:
        with self._log(rank).open("wb") as log:
            self._running[rank] = subprocess.Popen(
                [*WORKER, "--hostfile", str(self.hostfile), "--rank", str(rank), "--threads", "1"],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        failure_logs.keep(f"worker {rank}", self._log(rank), self._running[rank])

    def child(self, rank: int) -> psutil.Process:
        (child,) = psutil.Process(self._running[rank].pid).children()
        return child

    def logs(self) -> str:
        return "\n".join(f"--- rank {rank}\n{self._log(rank).read_text()}" for rank in self._running)

    def _log(self, rank: int) -> Path:
        return self._folder / f"{self.hostfile.stem}-rank{rank}.log"

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._running.values():
            worker.send_signal(signal.SIGTERM)
        for worker in self._running.values():
            worker.wait(60)


@pytest.fixture(scope="module")
def answer(backend: Backend, smollm2: Path) -> str:
    """One rank's answer."""
    backend.load(MODEL)
    reply = backend.client.Predict(**QUESTION)
    assert "Paris" in reply.message.decode()
    return reply.message.decode()


@pytest.fixture(scope="module")
def two(backend: Backend, answer: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("two"), 2) as workers:
        with ThreadPoolExecutor(1) as pool:
            # The server asks before there is anybody to answer.
            load = pool.submit(backend.load, MODEL, f"hostfile:{workers.hostfile}", "tool_parser:hermes")
            while state_name(backend.client.Status().state) != "BUSY":
                assert not load.done()
            workers.start(1)
            load.result()
        yield workers


def test_two_ranks_answer_as_one_does(backend: Backend, two: Workers, answer: str) -> None:
    assert backend.client.Predict(**QUESTION).message.decode() == answer
    chunks = list(backend.client.PredictStream(**QUESTION))
    assert b"".join(chunk.message for chunk in chunks).decode() == answer
    assert "".join(delta.content for chunk in chunks for delta in chunk.chat_deltas) == answer
    assert sorted(backend.client.Status().memory.breakdown) == ["rank 0", "rank 1"]


def test_eight_requests_at_once_are_all_answered(backend: Backend, two: Workers, answer: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: backend.client.Predict(**QUESTION), range(8)))
    # Rounding may differ between a batch and one alone; the city may not.
    assert all("Paris" in reply.message.decode() for reply in replies)
    assert all(reply.tokens == replies[0].tokens for reply in replies if reply.message.decode() == answer)


def test_logprobs_and_tokens_work_over_two_ranks(backend: Backend, two: Workers) -> None:
    reply = backend.client.Predict(**{**QUESTION, "Tokens": 4}, Logprobs=1, TopLogprobs=2)
    entries = json.loads(reply.logprobs)["content"]
    assert len(entries) == reply.tokens == 4
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == reply.message
    tokens = backend.client.TokenizeString(Prompt="The capital of France").tokens
    assert backend.client.Detokenize(tokens=tokens).content == "The capital of France"


def test_a_forced_call_comes_out_as_a_call(backend: Backend, two: Workers) -> None:
    request = {**QUESTION, "Tools": json.dumps([LOOK_UP]), "ToolChoice": "required", "Tokens": 60}
    deltas = [delta for chunk in backend.client.PredictStream(**request) for delta in chunk.chat_deltas]
    parts = [part for delta in deltas for part in delta.tool_calls if part.index == 0]
    assert [part.name for part in parts if part.name] == ["look_up"]
    assert json.loads("".join(part.arguments for part in parts))["city"] in ("Paris", "Rome")
    # The limit may cut the last call off inside its closing mark, and what is no mark is text.
    content = "".join(delta.content for delta in deltas)
    assert not any(mark in content for mark in ("<tool_call>", "</tool_call>"))


def test_a_cancelled_stream_makes_room(backend: Backend, two: Workers, answer: str) -> None:
    stream = backend.client.PredictStream(**{**QUESTION, "Tokens": 0}, IgnoreEOS=True)
    next(stream)
    stream.cancel()
    assert backend.client.Predict(**QUESTION).message.decode() == answer


def test_a_killed_rank_comes_back_and_the_next_request_works(backend: Backend, two: Workers, answer: str) -> None:
    stream = backend.client.PredictStream(**{**QUESTION, "Tokens": 0}, IgnoreEOS=True, timeout=120)
    for _ in range(3):
        next(stream)
    victim = two.child(1)
    victim.kill()
    code = None
    with contextlib.suppress(StopIteration):
        try:
            while True:
                next(stream)
        except grpc.RpcError as error:
            code = error.code()
    assert code in (None, grpc.StatusCode.UNAVAILABLE), (code, backend.log, two.logs())
    assert backend.client.Predict(**QUESTION, timeout=120).message.decode() == answer
    assert two.child(1).pid != victim.pid


def test_three_ranks_and_free_and_load_again(
    backend: Backend, answer: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Workers(tmp_path_factory.mktemp("three"), 3) as workers:
        workers.start(2)
        workers.start(1)
        backend.load(MODEL, f"hostfile:{workers.hostfile}", "split:20,7,3")
        assert backend.client.Predict(**QUESTION).message.decode() == answer
        assert len(backend.client.Status().memory.breakdown) == 3
        assert backend.client.Free().success
        assert state_name(backend.client.Status().state) == "UNINITIALIZED"
        backend.load(MODEL, f"hostfile:{workers.hostfile}")
        assert backend.client.Predict(**QUESTION).message.decode() == answer
