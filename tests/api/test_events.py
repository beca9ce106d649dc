"""GET /events: what happened to this server, for those who may know, at once or as it happens."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from chorus.api.journal import MOST_WATCHERS
from chorus.messages.proto import engine_pb2 as pb
from chorus.security.key_rules import key_hash
from chorus.telemetry import journal
from chorus.telemetry.events import Event, Level
from tests.api.conftest import MODEL_ID, ApiProcess, settings_for
from tests.api.scripted_engine import DEADLINE, Run, ScriptedEngine, refuse

SERVER = "127.0.0.1:8100"
OTHER = "127.0.0.1:8200"


@pytest.fixture(scope="module")
def shared_watched(
    shared_engine: ScriptedEngine, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ApiProcess, Path]]:
    home = tmp_path_factory.mktemp("watched")
    told = {"folder": str(home / "events"), "server": SERVER}
    settings = settings_for(shared_engine, model_path, events=told, limits={"keep_alive_seconds": 0.2})
    api = ApiProcess(home, settings)
    api.wait_until_live()
    yield api, home / "events"
    api.stop()


@pytest.fixture
def watched(shared_watched: tuple[ApiProcess, Path]) -> ApiProcess:
    return shared_watched[0]


@pytest.fixture
def folder(shared_watched: tuple[ApiProcess, Path]) -> Path:
    """Of the journal, without what other tests have left there."""
    for file in shared_watched[1].glob("*"):
        file.unlink()
    return shared_watched[1]


def happened(folder: Path, text: str, moment: float | None = None, server: str = SERVER) -> None:
    moment = time.time() if moment is None else moment
    journal.append(folder, Event(moment, "rank_lost", Level.WARNING, text, server, "tiny", rank=1, cause="outside"))


def told(api: ApiProcess, query: str = "", **options: Any) -> list[str]:
    answer = httpx.get(f"{api.url}/events{query}", timeout=DEADLINE, **options)
    assert answer.status_code == 200, answer.text
    return [event["text"] for event in answer.json()["events"]]


def frames(answer: httpx.Response) -> Iterator[str]:
    for line in answer.iter_lines():
        if line:
            yield json.loads(line.removeprefix("data: "))["text"] if line.startswith("data: ") else line


def break_off(run: Run) -> None:
    run.accept()
    run.send(70)
    run.finish(pb.FAILED, error="never to be told")


def test_what_happened_to_this_server_is_told_and_nothing_of_others(watched: ApiProcess, folder: Path) -> None:
    assert told(watched) == []
    for number in range(5):
        happened(folder, f"event {number}", 1000.0 + number)
    happened(folder, "not ours", 2000.0, OTHER)
    assert told(watched) == [f"event {number}" for number in range(5)]
    assert told(watched, "?limit=2") == ["event 3", "event 4"]
    assert told(watched, "?since=1003&limit=1000") == ["event 3", "event 4"]
    assert told(watched, "?since=1970-01-01T00:16:44%2B00:00") == ["event 4"]
    event = httpx.get(f"{watched.url}/events?limit=1", timeout=DEADLINE).json()["events"][0]
    assert event == {
        "time": 1004.0,
        "kind": "rank_lost",
        "level": "warning",
        "text": "event 4",
        "server": SERVER,
        "model": "tiny",
        "rank": 1,
        "cause": "outside",
    }


@pytest.mark.parametrize("query", ["?limit=0", "?limit=1001", "?limit=x", "?limit=%C2%B2", "?since=soon"])
def test_what_cannot_be_meant_is_refused_with_the_field(watched: ApiProcess, query: str) -> None:
    answer = httpx.get(f"{watched.url}/events{query}", timeout=DEADLINE)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query[1:].partition("=")[0]


def test_a_stream_tells_what_was_then_what_comes_and_that_it_is_alive(watched: ApiProcess, folder: Path) -> None:
    happened(folder, "before")
    with httpx.stream("GET", f"{watched.url}/events?since=1h&follow=1", timeout=DEADLINE) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = frames(answer)
        assert [next(lines), next(lines)] == [": events", "before"]
        assert next(lines) == ": still here"
        happened(folder, "not ours", server=OTHER)
        happened(folder, "now")
        assert next(line for line in lines if not line.startswith(":")) == "now"


def test_who_asks_for_a_stream_by_its_type_hears_of_new_events_alone(watched: ApiProcess, folder: Path) -> None:
    """Also where somebody else watches, who has not been told of the last one so far."""

    def watching() -> AbstractContextManager[httpx.Response]:
        return httpx.stream("GET", f"{watched.url}/events", headers={"accept": "text/event-stream"}, timeout=DEADLINE)

    def events(lines: Iterator[str]) -> Iterator[str]:
        return (line for line in lines if not line.startswith(":"))

    with watching() as first:
        earlier = frames(first)
        assert next(earlier) == ": events"
        happened(folder, "before")
        with watching() as second:
            later = frames(second)
            assert next(later) == ": events"
            happened(folder, "now")
            assert next(events(later)) == "now"
        assert [next(events(earlier)), next(events(earlier))] == ["before", "now"]


def test_watchers_are_let_go_at_once_when_the_server_ends(start_api: Callable[..., ApiProcess], folder: Path) -> None:
    limits = {"shutdown_grace_seconds": 600}
    api = start_api(events={"folder": str(folder), "server": SERVER}, limits=limits)
    with httpx.stream("GET", f"{api.url}/events?follow=1", timeout=DEADLINE) as answer:
        lines = frames(answer)
        assert next(lines) == ": events"
        api.process.send_signal(signal.SIGTERM)
        assert list(lines) == []
        assert api.process.wait(DEADLINE) == 0


def test_only_so_many_may_watch_and_a_place_is_free_again_when_one_leaves(watched: ApiProcess) -> None:
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(base_url=watched.url, timeout=DEADLINE, limits=limits) as client:
        opened = [
            client.send(client.build_request("GET", "/events?follow=1"), stream=True) for _ in range(MOST_WATCHERS)
        ]
        assert {answer.status_code for answer in opened} == {200}
        refused = client.get("/events?follow=1")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_watchers")
        assert client.get("/events").status_code == 200
        opened.pop().close()
        deadline = time.monotonic() + DEADLINE
        while True:
            again = client.send(client.build_request("GET", "/events?follow=1"), stream=True)
            if again.status_code == 200:
                break
            again.close()
            assert time.monotonic() < deadline
        for answer in (*opened, again):
            answer.close()


def test_with_keys_only_admin_sees_them_and_refused_keys_are_among_them(
    start_api: Callable[..., ApiProcess], folder: Path
) -> None:
    keys = [
        {"id": "user", "sha256": key_hash("use"), "scopes": ["use"]},
        {"id": "boss", "sha256": key_hash("adm"), "scopes": ["admin"]},
    ]
    api = start_api(events={"folder": str(folder), "server": SERVER}, keys=keys)
    assert httpx.get(f"{api.url}/events", timeout=DEADLINE).status_code == 401
    for _ in range(20):
        assert httpx.get(f"{api.url}/v1/models", headers={"x-api-key": "guess"}, timeout=DEADLINE).status_code == 401
    refused = httpx.get(f"{api.url}/events", headers={"x-api-key": "use"}, timeout=DEADLINE)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_required")
    deadline = time.monotonic() + DEADLINE
    while not (seen := told(api, headers={"x-api-key": "adm"})):
        assert time.monotonic() < deadline
    assert seen == [
        "a request was refused for its API key: An API key is needed: send it as a bearer token or as x-api-key."
    ]
    api.stop()
    assert [event.numbers.get("more") for event in journal.read(folder)] == [None, 20]


def test_requests_that_fail_are_told_with_their_code_once_and_then_with_their_number(
    start_api: Callable[..., ApiProcess], engine: ScriptedEngine, folder: Path
) -> None:
    api = start_api(events={"folder": str(folder), "server": SERVER})
    asked = {"prompt": "never to be told", "max_tokens": 4}

    def status(finish: pb.Finish) -> int:
        engine.next(refuse(finish, "never to be told"))
        return httpx.post(f"{api.url}/v1/completions", json=asked, timeout=DEADLINE).status_code

    assert [status(finish) for finish in (pb.FAILED, pb.OVERLOADED, pb.REJECTED, pb.FAILED)] == [500, 429, 400, 500]
    engine.next(break_off)
    assert (
        "engine_failed"
        in httpx.post(f"{api.url}/v1/completions", json={**asked, "stream": True}, timeout=DEADLINE).text
    )
    api.stop()
    found = journal.read(folder)
    assert [(event.kind, event.level, event.text) for event in found] == [
        ("request_failed", "error", f"{MODEL_ID}: a request failed: engine_failed"),
        ("request_refused", "warning", f"{MODEL_ID}: a request could not be taken: engine_overloaded"),
        ("request_failed", "error", f"{MODEL_ID}: a request failed: engine_failed (2 more like it)"),
    ]
    assert {event.model for event in found} == {MODEL_ID}


def test_a_server_without_a_journal_has_no_events(api: ApiProcess) -> None:
    assert told(api) == []
