"""GET /requests and POST /requests/cancel: who sees which request, how far it is, and how it is ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from chorus.api.server.gate import Record
from chorus.api.server.listing import RECENT_KEPT, Listed, Listing
from chorus.config.front_end import ModelSettings
from chorus.messages.proto import engine_pb2 as pb
from chorus.security.key_rules import key_hash, new_key
from chorus.serving.engine_link.standing import Pace, Stage, Standing, together
from tests.api.conftest import MODEL_ID, ApiProcess, eventually, settings_for
from tests.api.scripted_engine import DEADLINE, Run, ScriptedEngine, say, say_until_cancelled

CHAT = "/v1/chat/completions"
SECRET = "a secret question"
ASKED = [{"role": "user", "content": SECRET}]
PROTOCOLS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": ASKED},
    "/v1/completions": {"prompt": SECRET},
    "/v1/responses": {"input": SECRET},
    "/v1/messages": {"messages": ASKED, "max_tokens": 16},
}
ANNA, BEN, CLARA, DORA = (new_key() for _ in range(4))


@pytest.fixture(scope="module")
def keyed_api(
    shared_engine: ScriptedEngine, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiProcess]:
    keys = [
        {"id": "anna", "sha256": key_hash(ANNA), "scopes": ["use"], "max_concurrent": 1},
        {"id": "ben", "sha256": key_hash(BEN), "scopes": ["use"]},
        {"id": "clara", "sha256": key_hash(CLARA), "scopes": ["admin"]},
        {"id": "dora", "sha256": key_hash(DORA), "scopes": ["admin"], "models": ["another"]},
    ]
    api = ApiProcess(tmp_path_factory.mktemp("keyed"), settings_for(shared_engine, model_path, keys=keys))
    api.wait_until_live()
    yield api
    api.stop()


@pytest.fixture
def as_key(keyed_api: ApiProcess, engine: ScriptedEngine) -> Iterator[Callable[[str], httpx.Client]]:
    opened: list[httpx.Client] = []

    def client(key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        opened.append(httpx.Client(base_url=keyed_api.url, timeout=DEADLINE, headers=headers))
        return opened[-1]

    yield client
    for each in opened:
        each.close()


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def listed(http: httpx.Client, request_id: str, which: str = "running") -> dict[str, Any] | None:
    entries = http.get("/requests").raise_for_status().json()[which]
    return next((entry for entry in entries if entry["id"] == request_id), None)


def cancel(http: httpx.Client, request_id: str) -> httpx.Response:
    return http.post("/requests/cancel", json={"id": request_id})


def named(request_id: str) -> dict[str, str]:
    return {"x-request-id": request_id}


def test_a_request_is_listed_as_it_goes_from_the_queue_to_its_end(
    http: httpx.Client, engine: ScriptedEngine, background: ThreadPoolExecutor
) -> None:
    turns = {turn: threading.Event() for turn in ("prefill", "decode", "resumed", "end")}

    def slow(run: Run) -> None:
        run.accept()
        assert turns["prefill"].wait(DEADLINE)
        run.begin(cached=3)
        assert turns["decode"].wait(DEADLINE)
        run.send(70)
        run.send(71)
        assert turns["resumed"].wait(DEADLINE)
        run.resume()
        assert turns["end"].wait(DEADLINE)
        figures = {"prompt_tokens": len(run.submit.prompt), "cached_tokens": 3, "generated_tokens": 3}
        run.finish(pb.STOP, generation_seconds=2.0, **figures)

    engine.next(slow)
    answer = background.submit(http.post, CHAT, json={"messages": ASKED, "model": "tiny"}, headers=named("slow-1"))

    def shows(**figures: Any) -> None:
        def found() -> bool:
            entry = listed(http, "slow-1") or {}
            return all(entry.get(name, figures) == value for name, value in figures.items())

        eventually(found, f"{figures}; it is {listed(http, 'slow-1')}")

    prompt = len(engine.wait_for_run().submit.prompt)
    shows(state="queued", cached_tokens=None, generated_tokens=0, ttft_seconds=None, resumed=0)
    turns["prefill"].set()
    shows(state="prefill", cached_tokens=3, generated_tokens=0, tokens_per_second=None, prompt_tokens=prompt)
    turns["decode"].set()
    shows(state="decode", generated_tokens=2, model=MODEL_ID, endpoint=CHAT, key=None)
    entry = listed(http, "slow-1")
    assert entry
    assert 0 < entry["ttft_seconds"] <= entry["age_seconds"]
    turns["resumed"].set()
    shows(resumed=1)
    turns["end"].set()
    assert answer.result(DEADLINE).headers["x-request-id"] == "slow-1"
    eventually(lambda: listed(http, "slow-1") is None, "it is no more among those that run")
    ended = listed(http, "slow-1", "recent")
    assert ended
    assert (ended["state"], ended["generated_tokens"], ended["tokens_per_second"]) == ("stop", 3, 1.0)
    assert (ended["prompt_tokens"], ended["cached_tokens"], ended["resumed"]) == (prompt, 3, 1)


def test_no_text_of_a_request_or_its_answer_is_shown(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.next(say(range(70, 100)))
    answered = http.post(CHAT, json={"messages": ASKED, "user": "somebody"}, headers=named("quiet")).json()
    said = answered["choices"][0]["message"]["content"]
    shown = http.get("/requests").text
    assert "quiet" in shown
    assert len(said) >= 30
    assert all(text not in shown for text in (SECRET, said, "somebody"))


def test_a_refused_and_an_abandoned_request_say_how_they_ended(
    http: httpx.Client, client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    engine.next(say_until_cancelled([70]), lambda run: run.finish(pb.FAILED, error="no memory"))
    with client.chat.completions.create(
        model="tiny", messages=ASKED, stream=True, extra_headers=named("left")
    ) as stream:
        next(iter(stream))
    eventually(lambda: (listed(http, "left", "recent") or {}).get("state") == "client_gone", "its client has left")
    assert http.post(CHAT, json={"messages": ASKED}, headers=named("failed")).status_code == 500
    assert (listed(http, "failed", "recent") or {}).get("state") == "error"


@pytest.mark.parametrize("path", PROTOCOLS)
def test_a_cancelled_request_is_told_in_its_own_protocol_and_the_engine_works_on_it_no_more(
    path: str, http: httpx.Client, engine: ScriptedEngine, background: ThreadPoolExecutor
) -> None:
    engine.next(say_until_cancelled([70]), say_until_cancelled([70]))
    whole = background.submit(http.post, path, json=PROTOCOLS[path], headers=named("whole"))
    eventually(lambda: (listed(http, "whole") or {}).get("state") == "decode", "it runs")
    assert cancel(http, "whole").json() == {"id": "whole", "cancelled": 1}
    answer = whole.result(DEADLINE)
    engine.wait_for_run(0).wait_cancelled()
    # Clients send a 409 or a 5xx again by themselves, and it was not to go on.
    assert answer.status_code == 499
    assert "cancelled by an administrator" in answer.json()["error"]["message"]

    with http.stream("POST", path, json={**PROTOCOLS[path], "stream": True}, headers=named("streamed")) as response:
        lines = response.iter_lines()
        next(lines)
        assert cancel(http, "streamed").status_code == 200
        last = json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))
    engine.wait_for_run(1).wait_cancelled()
    assert "cancelled by an administrator" in json.dumps(last)
    assert "error" in json.dumps(last)
    eventually(lambda: (listed(http, "streamed", "recent") or {}).get("state") == "cancelled", "it is cancelled")


def test_clients_raise_for_a_cancelled_request_and_do_not_send_it_again(
    api: ApiProcess, http: httpx.Client, engine: ScriptedEngine, background: ThreadPoolExecutor
) -> None:
    engine.next(say_until_cancelled([70]), say_until_cancelled([70]))
    patient = openai.OpenAI(base_url=f"{api.url}/v1", api_key="unused", max_retries=2, timeout=DEADLINE)
    asked = background.submit(
        patient.chat.completions.create, model="tiny", messages=ASKED, extra_headers=named("by-openai")
    )
    eventually(lambda: (listed(http, "by-openai") or {}).get("state") == "decode", "it runs")
    cancel(http, "by-openai")
    with pytest.raises(openai.APIStatusError, match="cancelled"):
        asked.result(DEADLINE)
    other = anthropic.Anthropic(base_url=api.url, api_key="unused", max_retries=2, timeout=DEADLINE)
    streamed = other.messages.create(
        model="tiny", messages=ASKED, max_tokens=16, stream=True, extra_headers=named("by-anthropic")
    )
    cancel(http, "by-anthropic")
    with pytest.raises(anthropic.APIStatusError, match="cancelled"):
        for _ in streamed:
            pass
    assert len(engine.runs) == 2


def test_a_request_that_waits_in_silence_can_be_cancelled(
    http: httpx.Client, engine: ScriptedEngine, background: ThreadPoolExecutor
) -> None:
    engine.next(Run.wait_cancelled)
    queued = background.submit(http.post, CHAT, json={"messages": ASKED, "stream": True}, headers=named("queued"))
    engine.wait_for_run()
    assert (listed(http, "queued") or {})["state"] == "queued"
    cancel(http, "queued")
    assert (queued.result(DEADLINE).status_code, queued.result().json()["error"]["code"]) == (499, "request_cancelled")
    engine.wait_for_run().wait_cancelled()


def test_what_does_not_run_cannot_be_cancelled(http: httpx.Client, engine: ScriptedEngine) -> None:
    unknown = cancel(http, "never-sent")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "request_not_found")
    assert "'never-sent'" in unknown.json()["error"]["message"]
    engine.next(say([70], finish=pb.LENGTH))
    http.post(CHAT, json={"messages": ASKED}, headers=named("over"))
    eventually(lambda: listed(http, "over") is None, "it is no more among those that run")
    ended = cancel(http, "over")
    assert (ended.status_code, ended.json()["error"]["code"]) == (409, "request_ended")
    assert "has ended already: length" in ended.json()["error"]["message"]
    for body in ({}, {"id": ""}, {"id": 1}, {"id": "x" * 200}, {"id": "over", "force": True}, ["over"]):
        assert http.post("/requests/cancel", json=body).status_code == 400


def test_two_requests_that_were_given_the_same_id_are_both_cancelled(
    http: httpx.Client, engine: ScriptedEngine, background: ThreadPoolExecutor
) -> None:
    engine.next(say_until_cancelled([70]), say_until_cancelled([70]))
    twice = [background.submit(http.post, CHAT, json={"messages": ASKED}, headers=named("twin")) for _ in range(2)]
    eventually(lambda: len(engine.runs) == 2, "both run")
    assert cancel(http, "twin").json()["cancelled"] == 2
    assert [answer.result(DEADLINE).status_code for answer in twice] == [499, 499]


def test_a_key_sees_and_cancels_its_own_requests_and_an_admin_all(
    as_key: Callable[[str], httpx.Client], engine: ScriptedEngine, background: ThreadPoolExecutor
) -> None:
    anna, ben, clara, dora = map(as_key, (ANNA, BEN, CLARA, DORA))
    engine.next(say_until_cancelled([70]), say_until_cancelled([70]))
    annas = background.submit(anna.post, CHAT, json={"messages": ASKED}, headers=named("of-anna"))
    eventually(lambda: listed(anna, "of-anna") is not None, "it runs")
    bens = background.submit(ben.post, CHAT, json={"messages": ASKED}, headers=named("of-ben"))
    eventually(lambda: listed(ben, "of-ben") is not None, "it runs")
    assert listed(ben, "of-anna") is None
    # An admin of another model hears of none of these.
    assert dora.get("/requests").json() == {"running": [], "recent": []}
    assert {entry["key"] for entry in clara.get("/requests").json()["running"]} == {"anna", "ben"}
    assert httpx.get(str(anna.base_url.copy_with(path="/requests")), timeout=DEADLINE).status_code == 401

    for other in (ben, dora):
        refused, unknown = cancel(other, "of-anna"), cancel(other, "of-nobody")
        # Nobody learns whether there is such a request.
        assert refused.status_code == unknown.status_code == 404
        assert refused.text.replace("of-anna", "") == unknown.text.replace("of-nobody", "")
    assert not engine.runs[0].cancelled.is_set()
    # Though it has as much open as its key may have.
    assert cancel(anna, "of-anna").status_code == 200
    assert "cancelled by its owner" in annas.result(DEADLINE).json()["error"]["message"]
    assert cancel(clara, "of-ben").status_code == 200
    assert "cancelled by an administrator" in bens.result(DEADLINE).json()["error"]["message"]
    assert listed(ben, "of-anna", "recent") is None
    assert (listed(ben, "of-ben", "recent") or {}).get("state") == "cancelled"


async def nobody(_: Any) -> None:
    raise AssertionError("nothing is sent here")


def test_only_the_last_ones_are_kept_and_nothing_holds_what_they_were() -> None:
    model = ModelSettings(engine_address="unix:/none", id="m", name="m", path=Path("/none"))
    listing, everybody = Listing(), Record("looks", nobody, may_admin=True, models=None)
    for number in range(RECENT_KEPT + 50):
        record = Record(str(number), nobody)
        with listing.listed(Listed(record, CHAT, model)):
            record.log_fields["finish"] = "stop"
    assert [entry.id for entry in listing.recent(everybody)] == [str(n) for n in range(RECENT_KEPT + 49, 49, -1)]
    assert not listing.running(everybody)


def test_the_speed_now_is_that_since_one_of_the_last_looks() -> None:
    pace = Pace()

    def look(now: float, tokens: int) -> float | None:
        return pace.look(now, Standing(Stage.DECODE, generated_tokens=tokens, first_token=100.0))

    assert pace.look(100.0, Standing()) is None
    assert look(110.0, 101) == 10.0  # nobody had looked: since the first token
    assert look(111.0, 151) == 50.0
    assert look(113.0, 151) == pytest.approx(50 / 3, abs=0.01)
    assert look(117.5, 151) == 0.0  # it stands still
    assert look(140.0, 401) == 10.0


def test_several_answers_are_one_request_and_a_prompt_counts_once() -> None:
    waiting = Standing(Stage.QUEUED, prompt_tokens=10)
    reading = Standing(Stage.PREFILL, 10, cached_tokens=4)
    writing = Standing(Stage.DECODE, 10, cached_tokens=10, generated_tokens=7, first_token=5.0, resumed=1)
    assert together([waiting, waiting]).stage is Stage.QUEUED
    assert together([waiting, reading]).stage is Stage.PREFILL
    assert together([reading, writing], per_prompt=2) == Standing(Stage.DECODE, 10, 4, 7, 5.0, 1)
    assert together([reading, writing], per_prompt=1).cached_tokens == 14
