"""Processes die; the service goes on, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.server import ChorusServer


def eventually(check: Callable[[], bool], seconds: float = 120.0) -> bool:
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def answers(server: ChorusServer) -> bool:
    try:
        return httpx.get(f"{server.url}/health/ready", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_killed_front_end_comes_back_and_the_model_stays_loaded(tiny_model: Path, tmp_path: Path) -> None:
    with ChorusServer(tiny_model, [], tmp_path) as server:
        text = server.text("The quick brown fox")
        before = server.get("/health")["engine"]
        front_end = server.process_named("chorus.api")
        front_end.send_signal(signal.SIGKILL)
        front_end.wait(60)
        # The socket belongs to the supervisor, so this request waits for the new front end instead of failing.
        assert server.text("The quick brown fox") == text
        after = server.get("/health")["engine"]
        assert after["started_at"] == before["started_at"]
        assert after["load_count"] == 1
        assert server.process_named("chorus.api").pid != front_end.pid


def test_a_killed_engine_is_started_again(tiny_model: Path, tmp_path: Path) -> None:
    with ChorusServer(tiny_model, [], tmp_path) as server:
        text = server.text("The quick brown fox")
        engine = server.process_named("chorus.engine")
        engine.send_signal(signal.SIGKILL)
        engine.wait(60)
        assert eventually(lambda: answers(server)), server.log
        assert server.text("The quick brown fox") == text


@pytest.mark.parametrize("transport", ["grpc", "ring"])
def test_a_stream_whose_rank_is_killed_is_told_at_once_and_the_model_comes_back(
    tiny_model: Path, tmp_path: Path, transport: str
) -> None:
    with ChorusServer(tiny_model, ["--ranks", "2", "--transport", transport], tmp_path) as server:
        text = server.text("The quick brown fox")
        body = {"prompt": "The quick brown fox", "max_tokens": 1500, "stream": True, "logit_bias": {"2": -100}}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            server.process_named("chorus.rank").send_signal(signal.SIGKILL)
            told = [line for line in lines if "error" in line]
        assert len(told) == 1, server.log
        # The supervisor sees the end of the rank as well, and may stop the leader before that has.
        assert "the engine lost a rank: rank 1" in told[0] or "The engine was stopped" in told[0]
        assert eventually(lambda: answers(server)), server.log
        assert server.text("The quick brown fox") == text


def test_requests_around_a_loss_are_answered_or_told_when_to_come_back(tiny_model: Path, tmp_path: Path) -> None:
    """Also those that meet the next engine while it loads: none of them may wait for an answer that never comes."""
    body = {"prompt": "The quick brown fox", "max_tokens": 4}
    with ChorusServer(tiny_model, [], tmp_path) as server, ThreadPoolExecutor(32) as pool:
        server.text("The quick brown fox")
        server.process_named("chorus.engine").send_signal(signal.SIGKILL)
        asked: list[Future[httpx.Response]] = []
        while not (asked and answers(server)):
            asked.append(pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=60))
        replies = [reply.result() for reply in asked]
    assert {reply.status_code for reply in replies} <= {200, 503}, [reply.text for reply in replies]
    assert all("retry-after" in reply.headers for reply in replies if reply.status_code == 503)


@pytest.mark.parametrize("arguments", [[], ["--ranks", "2"], ["--ranks", "2", "--transport", "mpi"]], ids=str)
def test_nothing_outlives_a_killed_supervisor(tiny_model: Path, tmp_path: Path, arguments: list[str]) -> None:
    server = ChorusServer(tiny_model, arguments, tmp_path)
    server.wait_until_ready()
    children = server.processes()
    assert children
    os.kill(server.process.pid, signal.SIGKILL)
    server.wait_for_exit()
    _, left = psutil.wait_procs(children, timeout=60)
    assert not left


def test_a_stop_ends_running_streams_in_bounded_time(tiny_model: Path, tmp_path: Path) -> None:
    server = ChorusServer(tiny_model, [], tmp_path, {"CHORUS_API__SHUTDOWN_GRACE_SECONDS": "1"})
    server.wait_until_ready()
    body = {"prompt": "on and on", "max_tokens": 4000, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    server.stop()
    assert any('"error"' in line for line in rest) or rest[-1] == "data: [DONE]" or rest[-2] == "data: [DONE]"


def test_a_port_that_is_taken_is_one_clear_line(tiny_model: Path, tmp_path: Path) -> None:
    with ChorusServer(tiny_model, [], tmp_path) as server:
        port = server.url.rpartition(":")[2]
        second = ChorusServer(tiny_model, ["--port", port], tmp_path)
        assert second.wait_for_exit() == 1
        assert f"cannot listen on 127.0.0.1:{port}" in second.log
        assert "Traceback" not in second.log


def test_a_model_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    server = ChorusServer(tmp_path / "nowhere", [], tmp_path)
    assert server.wait_for_exit() == 1
    assert "nowhere" in server.log
    assert "Traceback" not in server.log


def test_a_broken_model_ends_the_start_with_its_reason(tiny_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_model.iterdir():
        content = file.read_bytes()
        (broken / file.name).write_bytes(content[:-1000] if file.suffix == ".safetensors" else content)
    server = ChorusServer(broken, [], tmp_path)
    assert server.wait_for_exit() == 1
    assert "model.safetensors" in server.log


def test_another_address_than_loopback_needs_a_word(tiny_model: Path, tmp_path: Path) -> None:
    server = ChorusServer(tiny_model, ["--host", "0.0.0.0"], tmp_path)
    assert server.wait_for_exit() == 1
    assert "--insecure" in server.log


def test_the_cluster_status_shows_every_rank(tiny_model: Path, tmp_path: Path) -> None:
    with ChorusServer(tiny_model, ["--split", "4,3"], tmp_path) as server:
        server.text("The quick brown fox", max_tokens=8)
        found = server.get("/cluster/status")
        assert [(rank["rank"], rank["layers"]) for rank in found["ranks"]] == [(0, [3, 7]), (1, [0, 3])]
        assert found["state"] == "ready"
        assert found["observed"]["requests"] == 1
        assert found["observed"]["tokens_per_second"] > 0
        assert all(rank["memory_bytes"] > 0 and rank["step"] == found["step"] for rank in found["ranks"])
