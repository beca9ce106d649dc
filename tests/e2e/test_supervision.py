"""Processes die or stand still; the service goes on, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from chorus.platform.process.losses import Cause, Loss, last_loss
from tests.support.plain_words import grpcs_words
from tests.support.server import ChorusServer, answered, running

PROMPT = "The quick brown fox"
SECRET = "hf_never_to_be_shown"
ENDLESS = {"prompt": PROMPT, "max_tokens": 1500, "stream": True, "logit_bias": {"2": -100}}


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


@pytest.fixture(scope="module")
def alone(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    """One rank, which is there again after each test, until the last one kills its supervisor."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "chorus.yaml").write_text(f"cluster: {{env: {{HF_TOKEN: {SECRET}}}}}\n")
    with ChorusServer(tiny_model, [], folder) as server:
        yield server


@pytest.fixture(scope="module")
def three(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    """Three ranks, likewise."""
    arguments = ["--split", "3,2,2", "--transport", "grpc"]
    with ChorusServer(tiny_model, arguments, tmp_path_factory.mktemp("three")) as server:
        yield server


def test_the_cluster_status_shows_every_rank(three: ChorusServer) -> None:
    """Of a server that was asked nothing before."""
    three.text(PROMPT, max_tokens=8)
    found = three.get("/cluster/status")
    assert [(rank["rank"], rank["layers"]) for rank in found["ranks"]] == [(0, "4-6"), (1, "2-3"), (2, "0-1")]
    assert found["state"] == "ready"
    assert found["observed"]["requests"] == 1
    assert found["observed"]["tokens_per_second"] > 0

    def all_are_as_far() -> bool:
        status = three.get("/cluster/status")
        return all(rank["memory_bytes"] > 0 and rank["step"] == status["step"] for rank in status["ranks"])

    assert eventually(all_are_as_far)


def test_a_token_for_the_ranks_is_shown_to_nobody(alone: ChorusServer) -> None:
    shown = alone.get("/health")["configuration"]
    assert list(shown["cluster"]["env"]) == ["HF_TOKEN"]
    assert SECRET not in json.dumps(shown)


def test_a_killed_front_end_comes_back_and_the_model_stays_loaded(alone: ChorusServer) -> None:
    text = alone.text(PROMPT)
    before = alone.get("/health")["engine"]
    front_end = alone.process_named("chorus.api")
    front_end.send_signal(signal.SIGKILL)
    front_end.wait(60)
    # The socket belongs to the supervisor, so this request waits for the new front end instead of failing.
    assert alone.text(PROMPT) == text
    after = alone.get("/health")["engine"]
    assert after["started_at"] == before["started_at"]
    assert after["load_count"] == 1
    assert alone.process_named("chorus.api").pid != front_end.pid


def test_a_killed_engine_is_started_again_and_requests_meanwhile_wait_for_it(alone: ChorusServer) -> None:
    """Also those that meet the next engine while it loads: all of them are answered."""
    body = {"prompt": PROMPT, "max_tokens": 4}
    text = alone.text(PROMPT)
    engine = alone.process_named("chorus.engine")
    with ThreadPoolExecutor(32) as pool:
        engine.send_signal(signal.SIGKILL)
        asked: list[Future[httpx.Response]] = []
        while not (asked and answers(alone)):
            if len(asked) < 32:
                asked.append(pool.submit(httpx.post, f"{alone.url}/v1/completions", json=body, timeout=120))
        replies = [reply.result() for reply in asked]
    assert {reply.status_code for reply in replies} == {200}, [reply.text for reply in replies]
    assert alone.process_named("chorus.engine").pid != engine.pid
    assert alone.text(PROMPT) == text


def test_an_engine_that_is_killed_again_while_it_starts_is_told_of_in_plain_words(alone: ChorusServer) -> None:
    """Whatever is asked meanwhile, and in the log."""
    before = alone.process_named("chorus.engine")
    before.send_signal(signal.SIGKILL)
    before.wait(60)
    told: list[str] = []

    def starts() -> bool:
        told.append(httpx.get(f"{alone.url}/health/ready", timeout=60).text)
        return bool(running(alone.processes(), "chorus.engine"))

    assert eventually(starts)
    alone.process_named("chorus.engine").send_signal(signal.SIGKILL)

    def serves() -> bool:
        told.extend(httpx.get(alone.url + path, timeout=60).text for path in ("/health/ready", "/cluster/status"))
        return answers(alone)

    assert eventually(serves)
    assert any('"unreachable"' in text for text in told), told
    assert not grpcs_words("\n".join([*told, alone.log]))


PARTS = ["chorus.engine", "chorus.rank --rank 1", "chorus.rank --rank 2", "chorus.api"]


def pids(server: ChorusServer) -> dict[str, int]:
    return {part: server.process_named(part).pid for part in PARTS}


@pytest.mark.parametrize(
    ("part", "number", "told"),
    [
        ("chorus.engine", signal.SIGKILL, "engine ended with SIGKILL"),
        ("chorus.engine", signal.SIGSTOP, "engine was stopped: no sign of life"),
        ("chorus.rank --rank 1", signal.SIGKILL, "rank 1 ended with SIGKILL"),
        ("chorus.rank --rank 1", signal.SIGSTOP, "rank 1 was stopped: no sign of life"),
        ("chorus.rank --rank 2", signal.SIGSEGV, "rank 2 ended with SIGSEGV"),
        ("chorus.api", signal.SIGSTOP, "front end was stopped: no sign of life"),
    ],
)
def test_only_a_process_that_died_or_stands_still_is_replaced_and_told_so_and_requests_are_answered_again(
    three: ChorusServer, part: str, number: signal.Signals, told: str
) -> None:
    text, before, lost = three.text(PROMPT, max_tokens=8), pids(three), three.process_named(part)
    lost.send_signal(number)

    def again() -> bool:
        return not lost.is_running() and bool(running(three.processes(), part)) and answered(three.url) == text

    assert eventually(again, 180), f"{lost} was not replaced\n{three.log}"
    after = pids(three)
    assert {each for each in PARTS if before[each] != after[each]} == {part}, three.log
    loss = last_loss(three.process_named(part).environ())
    assert loss is not None
    assert loss.told.startswith(told)
    assert loss.cause is (Cause.FAULT if number is signal.SIGSEGV else Cause.OUTSIDE)


def test_what_was_told_of_these_losses_is_in_plain_words(three: ChorusServer) -> None:
    assert not grpcs_words(json.dumps(three.get("/cluster/status")))
    assert not grpcs_words(three.log)


def test_a_ring_that_loses_a_rank_comes_back_with_its_streams_and_ends_them_in_bounded_time(
    tiny_model: Path, tmp_path: Path
) -> None:
    arguments = ["--ranks", "2", "--transport", "ring"]
    with ChorusServer(tiny_model, arguments, tmp_path, {"CHORUS_API__SHUTDOWN_GRACE_SECONDS": "1"}) as server:
        before = {part: server.process_named(part).pid for part in PARTS[:2]}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=ENDLESS, timeout=120) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            server.process_named(PARTS[1]).send_signal(signal.SIGKILL)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]", server.log
        assert not any('"error"' in line for line in rest), server.log
        for part, pid in before.items():
            assert eventually(lambda part=part, pid=pid: server.process_named(part).pid != pid), server.log
            loss = last_loss(server.process_named(part).environ())
            assert loss == Loss(Cause.OUTSIDE, "rank 1 ended with SIGKILL")
        with httpx.stream("POST", f"{server.url}/v1/completions", json=ENDLESS, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        server.stop()
    assert any('"error"' in line for line in rest) or rest[-1] == "data: [DONE]" or rest[-2] == "data: [DONE]"


def test_a_port_that_is_taken_is_one_clear_line(
    alone: ChorusServer, tiny_model: Path, refusal: Callable[..., str]
) -> None:
    port = alone.url.rpartition(":")[2]
    assert f"cannot listen on 127.0.0.1:{port}" in refusal("serve", str(tiny_model), "--port", port)


def test_a_model_that_is_not_there_is_one_clear_line(tmp_path: Path, refusal: Callable[..., str]) -> None:
    assert "nowhere" in refusal("serve", str(tmp_path / "nowhere"), "--port", "0")


def test_another_address_than_loopback_needs_a_word(tiny_model: Path, refusal: Callable[..., str]) -> None:
    assert "--insecure" in refusal("serve", str(tiny_model), "--port", "0", "--host", "0.0.0.0")


def test_a_broken_model_ends_the_start_with_its_reason(tiny_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_model.iterdir():
        content = file.read_bytes()
        (broken / file.name).write_bytes(content[:-1000] if file.suffix == ".safetensors" else content)
    server = ChorusServer(broken, [], tmp_path)
    assert server.wait_for_exit() == 1
    assert "model.safetensors" in server.log
    assert "Traceback" not in server.log


def end_without_a_supervisor(server: ChorusServer) -> None:
    children = server.processes()
    assert children
    os.kill(server.process.pid, signal.SIGKILL)
    server.wait_for_exit()
    _, left = psutil.wait_procs(children, timeout=60)
    assert not left


def test_nothing_outlives_a_killed_supervisor(alone: ChorusServer) -> None:
    end_without_a_supervisor(alone)


def test_no_rank_outlives_a_killed_supervisor(three: ChorusServer) -> None:
    end_without_a_supervisor(three)


def test_nothing_of_mpi_outlives_a_killed_supervisor(tiny_model: Path, tmp_path: Path) -> None:
    server = ChorusServer(tiny_model, ["--ranks", "2", "--transport", "mpi"], tmp_path)
    server.wait_until_ready()
    end_without_a_supervisor(server)
