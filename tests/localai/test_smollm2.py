"""The real model over one rank and over two, with a worker as its users start it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.localai.hand_started import Workers
from tests.localai.process import Backend
from tests.localai.table import message, state_name

MODEL = "smollm2-135m"
QUESTION: dict[str, Any] = {
    "Messages": [message("user", "Please tell me the capital of France.")],
    "UseTokenizerTemplate": True,
    "Tokens": 12,
    "ModelIdentity": MODEL,
}


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
            load = pool.submit(backend.load, MODEL, f"hostfile:{workers.hostfile}")
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
    assert len({reply.tokens for reply in replies if reply.message.decode() == answer}) <= 1
