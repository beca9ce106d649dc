"""Over gRPC a lost stage starts anew alone: the others keep their processes and weights, and streams go on."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.test_supervision import eventually
from tests.support.server import ChorusServer
from tests.support.tiny_model import LLAMA_400M, write_random_model

STAGES = 3
NO_END = {"0": -100, "2": -100}
TOKENS = {"small": 300, "large": 96}
"""So many that some are left when a stage is killed behind the first of them. The large one's take long."""
MOST_READ = 10e6
"""Bytes that a process may read meanwhile, whatever it holds."""
SMALL = LLAMA_400M | {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "vocab_size": 512}
"""120 MB: a stage that read its part again would have read four times what is allowed."""
LARGE = LLAMA_400M | {"vocab_size": 512}
"""1.6 GB."""


@pytest.fixture(scope="module", params=["small", pytest.param("large", marks=pytest.mark.system)])
def size(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(size: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    folder = tmp_path_factory.mktemp("stages")
    write_random_model(folder / "model", {"small": SMALL, "large": LARGE}[size], tokenizer=True)
    weights = folder / "model" / "model.safetensors"
    try:
        arguments = ["--ranks", str(STAGES), "--transport", "grpc", "--dtype", "float32"]
        with ChorusServer(folder / "model", arguments, folder) as server:
            yield server
    finally:
        weights.unlink()


def pid_of(rank: int, server: ChorusServer) -> int:
    """0 while there is none, as the server tells."""
    return next((int(told["pid"]) for told in server.get("/cluster/status")["ranks"] if told["rank"] == rank), 0)


def stages(server: ChorusServer) -> dict[int, psutil.Process]:
    """The process of each rank, as the server tells."""
    return {int(rank["rank"]): psutil.Process(rank["pid"]) for rank in server.get("/cluster/status")["ranks"]}


def read_bytes(process: psutil.Process) -> int:
    """All that it ever asked the system for, from disk, from its cache or from a pipe."""
    lines = Path(f"/proc/{process.pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def tokens(lines: Iterator[str]) -> Iterator[str]:
    """The text of each event; an error is an assertion's business."""
    for line in lines:
        if line.startswith("data: {"):
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            yield event["choices"][0]["text"]


@pytest.mark.linux("/proc/PID/io")
@pytest.mark.parametrize("lost", [1, pytest.param(2, marks=pytest.mark.system)], ids=["middle", "first"])
def test_the_other_stages_keep_their_processes_and_weights_and_the_stream_goes_on(
    server: ChorusServer, size: str, lost: int
) -> None:
    body = {"prompt": "The quick brown fox", "max_tokens": TOKENS[size], "temperature": 0, "logit_bias": NO_END}
    calm = server.complete(**body)["choices"][0]["text"]
    before = stages(server)
    weights = {rank["rank"]: rank["weight_bytes"] for rank in server.get("/model/info")["ranks"]}
    others = [rank for rank in before if rank != lost]
    assert all(read_bytes(before[rank]) > weights[rank] > 2 * MOST_READ for rank in others), "reading a part is seen"
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**body, "stream": True}, timeout=300) as response:
        heard = tokens(response.iter_lines())
        text = "".join(next(heard) for _ in range(5))
        read = {rank: read_bytes(before[rank]) for rank in others}
        before[lost].send_signal(signal.SIGKILL)
        text += "".join(heard)
    assert text == calm
    assert eventually(lambda: pid_of(lost, server) not in (0, before[lost].pid)), server.log
    after = stages(server)
    for rank in others:
        assert after[rank] == before[rank], server.log
        assert read_bytes(after[rank]) - read[rank] < MOST_READ
