"""Until the engine has taken a request its refusal is a status; from then on its client hears that it is alive."""

from __future__ import annotations

import json
import threading

import httpx
import pytest

from chorus.messages.proto import engine_pb2 as pb
from tests.api.conftest import eventually, open_requests
from tests.api.scripted_engine import DEADLINE, Run, ScriptedEngine, refuse, say

CHAT = "/v1/chat/completions"
STREAM = {"messages": [{"role": "user", "content": "hello"}], "stream": True}


@pytest.mark.parametrize(("finish", "status"), [(pb.REJECTED, 400), (pb.OVERLOADED, 429), (pb.FAILED, 500)])
def test_what_the_engine_does_not_take_is_a_status_also_for_a_stream(
    http: httpx.Client, engine: ScriptedEngine, finish: pb.Finish, status: int
) -> None:
    engine.next(refuse(finish, "not today"))
    response = http.post(CHAT, json=STREAM)
    assert response.status_code == status
    assert response.json()["error"]["message"] == "Not today."


def test_a_stream_begins_when_the_engine_has_taken_it_and_not_with_its_first_token(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    seen = threading.Event()

    def queued(run: Run) -> None:
        run.accept()
        assert seen.wait(DEADLINE)
        run.finish(pb.STOP, tokens=[70])

    engine.next(queued)
    with http.stream("POST", CHAT, json=STREAM) as response:
        lines = response.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
        seen.set()
        assert list(lines)[-2] == "data: [DONE]"


def test_what_fails_after_it_was_taken_is_an_event_of_the_stream_and_a_status_of_a_whole_answer(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    def fails(run: Run) -> None:
        run.accept()
        run.finish(pb.FAILED, error="out of memory")

    engine.next(fails, fails)
    response = http.post(CHAT, json=STREAM)
    assert response.status_code == 200
    assert json.loads(response.text.split("data: ")[-1])["error"]["code"] == "engine_failed"
    assert http.post(CHAT, json={**STREAM, "stream": False}).status_code == 500


def test_where_one_of_several_choices_is_refused_the_others_are_given_up(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    def taken(run: Run) -> None:
        run.accept()
        run.wait_cancelled()

    engine.next(taken, refuse(pb.OVERLOADED, "the queue is full"), taken)
    response = http.post(CHAT, json={**STREAM, "n": 3})
    assert response.status_code == 429
    assert response.headers["retry-after"]
    for number in (0, 2):
        engine.wait_for_run(number).wait_cancelled()
    eventually(lambda: open_requests(http) == 0, "the requests were forgotten")


def test_several_choices_that_are_all_taken_are_one_stream(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.next(say([70]), say([71]))
    response = http.post(CHAT, json={**STREAM, "n": 2})
    assert response.status_code == 200
    assert response.text.endswith("data: [DONE]\n\n")
