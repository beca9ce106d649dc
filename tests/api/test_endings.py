"""How requests end otherwise than with an answer: clients that leave, engines that go, time that runs out."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from chorus.messages.proto import engine_pb2 as pb
from tests.api.conftest import ApiProcess, eventually, open_requests
from tests.api.scripted_engine import DEADLINE, Run, ScriptedEngine, say, say_until_cancelled
from tests.support.leaving import asked

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
STREAM = {"messages": HELLO, "stream": True}


def last_event(lines: list[str]) -> str:
    return [line for line in lines if line][-1].removeprefix("data: ")


def access_lines(api: ApiProcess, request_id: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in api.log.read_text().splitlines()]
    return [line for line in lines if line.get("request_id") == request_id and line["message"] == "request"]


def test_a_stream_cut_off_by_its_client_is_cancelled_in_the_engine(
    client: openai.OpenAI, http: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.next(say_until_cancelled([70, 71]))
    with client.chat.completions.create(model="tiny", messages=HELLO, stream=True) as stream:
        next(iter(stream))
    engine.wait_for_run().wait_cancelled()
    eventually(lambda: open_requests(http) == 0, "the request was forgotten")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_is_cancelled(
    api: ApiProcess, http: httpx.Client, engine: ScriptedEngine, stream: bool
) -> None:
    engine.next(say_until_cancelled([]))
    name = f"leaves-early-{stream}"
    with asked(api.url + CHAT, {"messages": HELLO, "stream": stream}, **{"x-request-id": name}):
        run = engine.wait_for_run()
    run.wait_cancelled()
    eventually(lambda: open_requests(http) == 0, "the request was forgotten")
    eventually(lambda: bool(access_lines(api, name)), "the log line")
    assert access_lines(api, name)[0]["status"] == 499
    assert access_lines(api, name)[0]["finish"] == "client_gone"


def test_a_whole_answer_whose_client_leaves_midway_is_cancelled(
    api: ApiProcess, http: httpx.Client, engine: ScriptedEngine
) -> None:
    midway = threading.Event()

    def says_three_tokens(run: Run) -> None:
        run.accept()
        run.send(70, 71, 72)
        midway.set()
        run.wait_cancelled()
        run.finish(pb.CANCELLED)

    engine.next(says_three_tokens)
    with asked(api.url + CHAT, {"messages": HELLO}):
        assert midway.wait(DEADLINE)
    engine.wait_for_run().wait_cancelled()
    eventually(lambda: open_requests(http) == 0, "the request was forgotten")


def test_one_clients_leaving_does_not_touch_the_others(http: httpx.Client, engine: ScriptedEngine) -> None:
    may_end = threading.Event()

    def waits(run: Run) -> None:
        run.send(70)
        assert may_end.wait(DEADLINE)
        run.finish(pb.STOP, tokens=[71])

    engine.next(waits, say_until_cancelled([72]))
    with http.stream("POST", CHAT, json=STREAM) as kept:
        lines = kept.iter_lines()
        next(lines)
        with http.stream("POST", CHAT, json=STREAM) as left:
            next(left.iter_lines())
        engine.wait_for_run(1).wait_cancelled()
        may_end.set()
        assert last_event(list(lines)) == "[DONE]"
    assert not engine.runs[0].cancelled.is_set()


def test_an_engine_that_fails_midway_is_an_error_event(http: httpx.Client, engine: ScriptedEngine) -> None:
    def fails(run: Run) -> None:
        run.send(70)
        run.finish(pb.FAILED, error="out of memory")

    engine.next(fails)
    response = http.post(CHAT, json=STREAM)
    assert response.status_code == 200
    error = json.loads(last_event(response.text.splitlines()))["error"]
    assert error["code"] == "engine_failed"
    assert "ut of memory" in error["message"]
    assert "[DONE]" not in response.text


def test_a_request_may_not_run_for_ever(engine: ScriptedEngine, start_api: Callable[..., ApiProcess]) -> None:
    """Both have time enough to reach the engine and to begin, also in a process that is held up."""
    api = start_api(limits={"request_timeout_seconds": 5})
    engine.default = lambda run: say_until_cancelled([70] if run.submit.max_tokens == 9 else [])(run)
    with ThreadPoolExecutor(2) as threads:
        bodies = {"messages": HELLO}, {**STREAM, "max_tokens": 9}
        asked = [threads.submit(httpx.post, api.url + CHAT, json=body, timeout=DEADLINE) for body in bodies]
        whole, stream = (response.result(DEADLINE) for response in asked)
    assert (whole.status_code, whole.json()["error"]["code"]) == (504, "timeout")
    assert stream.status_code == 200
    assert json.loads(last_event(stream.text.splitlines()))["error"]["code"] == "timeout"
    for number in (0, 1):
        engine.wait_for_run(number).wait_cancelled()


def test_a_sigterm_lets_a_short_stream_finish(engine: ScriptedEngine, start_api: Callable[..., ApiProcess]) -> None:
    api = start_api(limits={"shutdown_grace_seconds": DEADLINE})
    may_end = threading.Event()

    def waits(run: Run) -> None:
        run.send(70)
        assert may_end.wait(DEADLINE)
        run.finish(pb.STOP, tokens=[71])

    engine.next(waits)
    with httpx.stream("POST", api.url + CHAT, json=STREAM, timeout=DEADLINE) as response:
        lines = response.iter_lines()
        next(lines)
        api.process.send_signal(signal.SIGTERM)
        eventually(lambda: "shutting down: 1 running" in api.log.read_text(), "the shutdown began")
        may_end.set()
        assert last_event(list(lines)) == "[DONE]"
    assert api.process.wait(DEADLINE) == 0


def test_a_client_that_does_not_read_cannot_hold_up_the_shutdown(
    engine: ScriptedEngine, start_api: Callable[..., ApiProcess]
) -> None:
    api = start_api(limits={"shutdown_grace_seconds": 0.2})
    flooded = threading.Event()

    def floods(run: Run) -> None:
        for _ in range(60_000):
            run.send(70)
        flooded.set()

    engine.description.context_length = 100_000
    engine.next(floods)
    try:
        with httpx.stream("POST", api.url + CHAT, json=STREAM, timeout=DEADLINE):
            assert flooded.wait(DEADLINE)
            api.process.send_signal(signal.SIGTERM)
            assert api.process.wait(DEADLINE) == 0
    finally:
        engine.description.context_length = 256


def test_a_killed_front_end_comes_back_on_the_same_socket_and_a_sigterm_ends_its_long_stream(
    engine: ScriptedEngine, start_api: Callable[..., ApiProcess]
) -> None:
    """The engine keeps its model meanwhile, and the stream ends with an error event."""
    api = start_api(limits={"shutdown_grace_seconds": 0.2})
    engine.next(say([70]), say([71]), say_until_cancelled([70]))
    assert httpx.post(api.url + CHAT, json={"messages": HELLO}, timeout=DEADLINE).status_code == 200
    api.process.kill()
    api.process.wait(DEADLINE)
    with ThreadPoolExecutor(1) as threads:
        # Sent while nobody is there to read it: the connection waits in the socket's queue.
        answer = threads.submit(httpx.post, api.url + CHAT, json={"messages": HELLO}, timeout=60)
        api.start()
        assert answer.result(60).status_code == 200
    assert httpx.get(f"{api.url}/health", timeout=DEADLINE).json()["engine"]["load_count"] == 1
    with httpx.stream("POST", api.url + CHAT, json=STREAM, timeout=DEADLINE) as response:
        lines = response.iter_lines()
        next(lines)
        api.process.send_signal(signal.SIGTERM)
        assert json.loads(last_event(list(lines)))["error"]["code"] == "shutting_down"
    engine.wait_for_run(2).wait_cancelled()
    assert api.process.wait(DEADLINE) == 0
