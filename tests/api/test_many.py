"""Several models behind one address: requests wait for those that are not loaded, and their owner hears of it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import anthropic
import grpc
import httpx
import openai
import pytest

from chorus.api.manage.plan import Plans
from chorus.config.front_end import ModelSettings
from chorus.messages.deploy import ModelRow, ModelState, PullRow
from chorus.messages.proto import engine_pb2 as pb
from chorus.security.key_rules import key_hash, new_key
from tests.api.conftest import MODEL_ID, ApiProcess, eventually, settings_for
from tests.api.page.frames import next_frame
from tests.api.scripted_engine import DEADLINE, Run, ScriptedEngine, say, say_until_cancelled
from tests.api.scripted_owner import STARTED, ScriptedOwner, demand_of
from tests.support.scrape import scrape
from tests.support.sockets import short

SECOND = "acme/second-model"
HELLO = [{"role": "user", "content": "hello"}]
PATIENCE = 10.0
"""Of the impatient: long enough for a stream to be told how far its model is, also by a server that is held up."""

UNLOADED, WAITING, LOADING = ModelState.UNLOADED, ModelState.WAITING, ModelState.LOADING
READY, DRAINING, FAILED = ModelState.READY, ModelState.DRAINING, ModelState.FAILED

PROTOCOLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 16},
}


def row(model_id: str, engine: ScriptedEngine, path: Path, state: ModelState = UNLOADED, **more: Any) -> ModelRow:
    settings = ModelSettings(
        engine_address=engine.address, id=model_id, name=model_id.partition("/")[2], path=path, **more
    )
    return ModelRow(model_id, state, settings.model_dump_json())


@pytest.fixture(scope="module")
def rows(shared_engine: ScriptedEngine, model_path: Path) -> list[ModelRow]:
    first = row(MODEL_ID, shared_engine, model_path, READY, aliases=("gpt-4",))
    return [first, row(SECOND, shared_engine, model_path)]


@pytest.fixture(scope="module")
def shared_owner(tmp_path_factory: pytest.TempPathFactory, rows: list[ModelRow]) -> Iterator[ScriptedOwner]:
    owner = ScriptedOwner(short(tmp_path_factory.mktemp("owner")) / "control.sock", rows)
    yield owner
    owner.stop()


def serve(folder: Path, owner: ScriptedOwner, engine: ScriptedEngine, model_path: Path, **more: Any) -> ApiProcess:
    models = [json.loads(each.settings) for each in owner.rows.values()]
    told = {**settings_for(engine, model_path), "models": models, "control_address": owner.address, **more}
    api = ApiProcess(folder, told)
    api.wait_until_live()
    return api


@pytest.fixture(scope="module")
def many_api(
    shared_owner: ScriptedOwner,
    shared_engine: ScriptedEngine,
    model_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ApiProcess]:
    folder = tmp_path_factory.mktemp("many")
    api = serve(folder, shared_owner, shared_engine, model_path, load_patience_seconds=DEADLINE, any_model=True)
    yield api
    api.stop()


@pytest.fixture
def owner(shared_owner: ScriptedOwner, rows: list[ModelRow], many_api: ApiProcess) -> ScriptedOwner:
    shared_owner.rows = {each.id: each for each in rows}
    shared_owner.asked.clear()
    shared_owner.findable.clear()
    shared_owner.pulls = ()
    shared_owner.wait_seen(shared_owner.set(SECOND, UNLOADED))
    return shared_owner


@pytest.fixture
def http(many_api: ApiProcess, owner: ScriptedOwner, engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=many_api.url, timeout=DEADLINE) as client:
        yield client


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def ask(http: httpx.Client, background: ThreadPoolExecutor) -> Callable[..., Future[httpx.Response]]:
    """Asks the second model, in a thread of its own."""

    def ask(path: str = "/v1/chat/completions", **more: Any) -> Future[httpx.Response]:
        body = {"model": SECOND, **PROTOCOLS.get(path, {}), **more}
        return background.submit(http.post, path, json=body)

    return ask


Ask = Callable[..., Future[httpx.Response]]


@pytest.mark.parametrize("path", PROTOCOLS)
def test_a_request_waits_for_its_model_and_the_owner_hears_of_it(
    path: str, ask: Ask, owner: ScriptedOwner, engine: ScriptedEngine
) -> None:
    engine.next(say([70, 71]))
    answer = ask(path)
    owner.wait_for_demand(SECOND, waiting=1, running=0)
    owner.set(SECOND, LOADING, progress=0.5)
    assert not engine.runs
    owner.set(SECOND, READY)
    assert answer.result(DEADLINE).status_code == 200
    assert answer.result().json()["model"] == SECOND
    owner.wait_for_demand(SECOND, waiting=0, running=0)


def streamed(http: httpx.Client, path: str, after: Callable[[], None]) -> tuple[str, list[str]]:
    """The first line of a stream, and those after it that are neither empty nor comments, once `after` was called."""
    with http.stream("POST", path, json={"model": SECOND, "stream": True, **PROTOCOLS[path]}) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        first = next(lines)
        after()
        return first, [line for line in lines if line and not line.startswith(":")]


def all_streamed(
    http: httpx.Client, threads: ThreadPoolExecutor, after: Callable[[], object]
) -> dict[str, tuple[str, list[str]]]:
    """Of every protocol at once; `after` is called when each has said something."""
    all_began = Barrier(len(PROTOCOLS), action=lambda: after() and None)
    streams = {
        path: threads.submit(streamed, http, path, lambda: all_began.wait(DEADLINE) and None) for path in PROTOCOLS
    }
    return {path: stream.result(DEADLINE) for path, stream in streams.items()}


def test_a_stream_that_waits_long_is_told_how_far_its_model_is(
    http: httpx.Client, owner: ScriptedOwner, engine: ScriptedEngine, background: ThreadPoolExecutor
) -> None:
    engine.default = say([70, 71])
    loading = owner.set(SECOND, LOADING, progress=0.43, loaded_bytes=1_200_000_000, total_bytes=2_800_000_000)
    owner.wait_seen(loading)
    for first, rest in all_streamed(http, background, lambda: owner.set(SECOND, READY)).values():
        assert first == f": loading {SECOND} 43 %, 1.2 of 2.8 GB"
        said = [json.loads(line.removeprefix("data: ")) for line in rest if line.startswith("data: {")]
        assert not [event for event in said if event.get("error")]
        assert rest[-1] == "data: [DONE]" or said[-1]["type"] in ("response.completed", "message_stop")


def test_clients_do_not_see_the_comments(
    many_api: ApiProcess, owner: ScriptedOwner, engine: ScriptedEngine, background: ThreadPoolExecutor
) -> None:
    engine.next(say([70, 71]), say([70, 71]))
    told = {"api_key": "unused", "max_retries": 0, "timeout": DEADLINE}

    def with_openai() -> str:
        client = openai.OpenAI(base_url=f"{many_api.url}/v1", **told)
        chunks = client.chat.completions.create(model=SECOND, messages=HELLO, stream=True)  # type: ignore[arg-type]
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    def with_anthropic() -> str:
        client = anthropic.Anthropic(base_url=many_api.url, **told)  # type: ignore[arg-type]
        with client.messages.stream(model=SECOND, messages=HELLO, max_tokens=8) as stream:  # type: ignore[arg-type]
            return stream.get_final_text()

    owner.wait_seen(owner.set(SECOND, WAITING, detail="tiny-model\nstill answers"))
    raw = httpx.Client(base_url=many_api.url, timeout=DEADLINE)
    answers = [background.submit(with_openai), background.submit(with_anthropic)]
    owner.wait_for_demand(SECOND, waiting=2)
    body = {"model": SECOND, "stream": True, "messages": HELLO}
    with raw.stream("POST", "/v1/chat/completions", json=body) as response:
        # Who came last hears something last. Its lines are kept: what nobody iterates over any more is closed.
        lines = response.iter_lines()
        assert next(lines) == f": waiting for {SECOND}: tiny-model still answers"
        owner.wait_for_demand(SECOND, waiting=3)
    owner.wait_for_demand(SECOND, waiting=2)
    owner.set(SECOND, READY)
    first, second = (answer.result(DEADLINE) for answer in answers)
    assert first == second != ""
    raw.close()


def test_a_load_that_fails_ends_a_stream_in_its_protocols_words(
    http: httpx.Client, owner: ScriptedOwner, background: ThreadPoolExecutor
) -> None:
    owner.wait_seen(owner.set(SECOND, LOADING))
    fail = lambda: owner.set(SECOND, FAILED, detail="no tensor is called lm_head")  # noqa: E731
    for path, (first, rest) in all_streamed(http, background, fail).items():
        assert first.startswith(": loading")
        (last,) = [line for line in rest if line.startswith("data: ")]
        event = json.loads(last.removeprefix("data: "))
        if path == "/v1/messages":
            assert event["type"] == "error"
            assert event["error"]["type"] == "overloaded_error"
        else:
            assert event["error"]["code"] == "model_failed"
        if path == "/v1/responses":
            assert (event["type"], event["sequence_number"]) == ("error", 0)
        assert "no tensor is called lm_head" in event["error"]["message"]


def test_a_load_that_fails_fails_its_own_requests_only(
    ask: Ask, http: httpx.Client, owner: ScriptedOwner, engine: ScriptedEngine
) -> None:
    failed = ask()
    owner.wait_for_demand(SECOND, waiting=1)
    owner.set(SECOND, LOADING)
    owner.set(SECOND, FAILED, detail="no tensor is called lm_head")
    response = failed.result(DEADLINE)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "model_failed")
    assert (response.json()["state"], response.json()["detail"]) == ("failed", "no tensor is called lm_head")
    assert response.headers["retry-after"]
    engine.next(say([70]))
    assert http.post("/v1/chat/completions", json={"messages": HELLO}).status_code == 200
    owner.wait_for_demand(SECOND, waiting=0)


def test_what_has_failed_is_tried_again_where_its_owner_wants_to(
    ask: Ask, owner: ScriptedOwner, engine: ScriptedEngine
) -> None:
    engine.next(say([70]))
    owner.wait_seen(owner.set(SECOND, FAILED, detail="no memory"))
    refused = ask()
    owner.wait_for_demand(SECOND, waiting=1)
    assert refused.result(DEADLINE).json()["error"]["code"] == "model_failed"
    owner.wait_for_demand(SECOND, waiting=0)
    again = ask()
    owner.wait_for_demand(SECOND, waiting=1)
    owner.set(SECOND, LOADING)
    owner.set(SECOND, READY)
    assert again.result(DEADLINE).status_code == 200


def test_what_needs_no_model_to_be_refused_does_not_wait_for_one(http: httpx.Client, owner: ScriptedOwner) -> None:
    known = len(owner.reports)
    for path, body, status in [
        ("/v1/chat/completions", {"messages": []}, 400),
        ("/v1/chat/completions", {"messages": HELLO, "n": 1000}, 400),
        ("/v1/chat/completions", {"messages": HELLO, "keep_alive": "soon"}, 400),
        ("/v1/completions", {"prompt": "x", "stop": ["a"] * 1000}, 400),
        ("/v1/messages", {"messages": HELLO}, 400),
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_none"}, 400),
        ("/v1/embeddings", {"input": "x"}, 400),
    ]:
        refused = http.post(path, json={"model": SECOND, **body})
        assert refused.status_code == status, refused.text
    assert not [report for report in owner.reports[known:] if demand_of(report, SECOND).waiting]


def test_an_unknown_model_is_answered_with_the_nearest_name(
    many_api: ApiProcess, tmp_path: Path, owner: ScriptedOwner, engine: ScriptedEngine, model_path: Path
) -> None:
    api = serve(tmp_path, owner, engine, model_path)
    body = {"model": "secnd-model", "messages": HELLO}
    try:
        refused = httpx.post(f"{api.url}/v1/chat/completions", json=body, timeout=DEADLINE)
    finally:
        api.stop()
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert "did you mean 'second-model'?" in refused.json()["error"]["message"]
    assert "/v1/models" in refused.json()["error"]["message"]
    assert not owner.asked


def test_a_model_that_stands_in_no_table_is_asked_of_the_owner(
    http: httpx.Client, owner: ScriptedOwner, engine: ScriptedEngine, model_path: Path
) -> None:
    owner.findable["stored"] = row("acme/stored", engine, model_path, READY)
    engine.next(say([70]))
    found = http.post("/v1/chat/completions", json={"model": "stored", "messages": HELLO})
    assert (found.status_code, found.json()["model"]) == (200, "acme/stored")
    missing = http.post("/v1/chat/completions", json={"model": "stord", "messages": HELLO})
    assert missing.status_code == 404
    assert "the nearest is acme/stored" in missing.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_while_it_waits_is_forgotten(stream: bool, many_api: ApiProcess, owner: ScriptedOwner) -> None:
    body = json.dumps({"model": SECOND, "messages": HELLO, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(many_api.address, DEADLINE) as connection:
        connection.sendall(head + body)
        owner.wait_for_demand(SECOND, waiting=1)
    owner.wait_for_demand(SECOND, waiting=0)


def test_draining_cuts_nothing_and_grants_nothing_new(
    ask: Ask, http: httpx.Client, owner: ScriptedOwner, engine: ScriptedEngine
) -> None:
    owner.wait_seen(owner.set(SECOND, READY))
    go_on, engine_says = Future[None](), Future[Run]()

    def slowly(run: Run) -> None:
        run.accept()
        run.send(70)
        engine_says.set_result(run)
        go_on.result(DEADLINE)
        say([71])(run)

    engine.next(slowly, say([72]))
    running = ask()
    engine_says.result(DEADLINE)
    first = len(owner.reports)
    drained = owner.set(SECOND, DRAINING)
    assert demand_of(owner.wait_seen(drained), SECOND).running == 1
    late = ask()
    owner.wait_for_demand(SECOND, waiting=1, running=1)
    go_on.set_result(None)
    assert running.result(DEADLINE).status_code == 200
    over = owner.wait_for_demand(SECOND, waiting=1, running=0)
    assert over.seen >= drained
    before = owner.reports[first : owner.reports.index(over)]
    assert all(demand_of(report, SECOND).running == 1 for report in before if report.seen >= drained)
    assert len(engine.runs) == 1
    for state in (UNLOADED, LOADING, READY):
        owner.set(SECOND, state)
    assert late.result(DEADLINE).status_code == 200


def test_a_request_whose_model_was_unloaded_under_it_waits_again(
    ask: Ask, owner: ScriptedOwner, engine: ScriptedEngine
) -> None:
    owner.wait_seen(owner.set(SECOND, READY))
    engine.next(lambda run: None, lambda run: None)
    answers = [ask(), ask(stream=True)]
    engine.wait_for_run(1)
    engine.description.state = pb.LOADING
    engine.die()
    owner.wait_seen(owner.set(SECOND, UNLOADED))
    owner.wait_for_demand(SECOND, waiting=2, running=0)
    engine.description.state = pb.READY
    engine.next(say([70]), say([70]))
    owner.set(SECOND, LOADING)
    owner.set(SECOND, READY)
    assert [answer.result(DEADLINE).status_code for answer in answers] == [200, 200]
    assert "[DONE]" in answers[1].result().text


def test_requests_are_served_by_the_last_table_while_the_owner_is_away(
    ask: Ask, owner: ScriptedOwner, engine: ScriptedEngine
) -> None:
    owner.wait_seen(owner.set(SECOND, READY))
    owner.stop()
    try:
        engine.next(say([70]), say([71]))
        assert ask().result(DEADLINE).status_code == 200
        # Another owner counts its tables anew.
        owner.version = 0
        owner.reports.clear()
        owner.set(SECOND, UNLOADED)
    finally:
        owner.start()
    owner.wait_for(lambda report: report.seen == 1, "its first table is in force")
    assert max(report.seen for report in owner.reports) == 1
    waiting = ask()
    owner.wait_for_demand(SECOND, waiting=1)
    owner.set(SECOND, READY)
    assert waiting.result(DEADLINE).status_code == 200


@pytest.mark.parametrize(("said", "seconds"), [("5m", 300), (300, 300), (0, 0), (-1, -1), ("1.5h", 5400), (None, None)])
def test_how_long_a_model_is_to_stay_goes_to_its_owner(
    said: Any, seconds: float | None, ask: Ask, owner: ScriptedOwner, engine: ScriptedEngine
) -> None:
    before = demand_of(owner.wait_seen(owner.set(SECOND, READY)), SECOND).served
    engine.next(say([70]))
    assert ask(keep_alive=said).result(DEADLINE).status_code == 200
    report = owner.wait_for_demand(SECOND, served=before + 1, running=0)
    assert demand_of(report, SECOND).keep_alive_seconds == seconds


def test_tokens_are_counted_without_loading_the_model(http: httpx.Client, owner: ScriptedOwner) -> None:
    known = len(owner.reports)
    counted = http.post("/tokenize", json={"model": SECOND, "prompt": "hello"}).json()
    assert counted["count"] == len(counted["tokens"]) > 0
    text = http.post("/detokenize", json={"model": SECOND, "tokens": counted["tokens"]}).json()
    assert "hello" in text["prompt"]
    assert http.post("/v1/messages/count_tokens", json={"model": SECOND, "messages": HELLO}).json()["input_tokens"]
    assert not [report for report in owner.reports[known:] if demand_of(report, SECOND).waiting]


def test_the_context_shown_of_any_model_is_what_its_engine_has_room_for(
    http: httpx.Client, ask: Ask, owner: ScriptedOwner, engine: ScriptedEngine
) -> None:
    """Its files say nothing of it."""
    engine.next(say([70, 71]))
    owner.set(SECOND, READY)
    assert ask().result(DEADLINE).status_code == 200
    assert http.get("/cluster/status").json()["models"][1]["context_length"] == 256
    owner.wait_seen(owner.set(SECOND, UNLOADED))
    assert http.get("/cluster/status").json()["models"][1]["context_length"] == 256


def test_a_front_end_that_takes_over_asks_the_engines_of_all_that_are_loaded_at_once(
    shared_owner: ScriptedOwner, owner: ScriptedOwner, engine: ScriptedEngine, model_path: Path, tmp_path: Path
) -> None:
    """Before anybody asks for any of them."""
    owner.set(SECOND, READY)
    api = serve(tmp_path, shared_owner, engine, model_path)
    try:

        def known() -> bool:
            listed = httpx.get(f"{api.url}/v1/models", timeout=DEADLINE).json()["data"]
            return [each["context_length"] for each in listed] == [256, 256]

        eventually(known, "both engines were asked")
    finally:
        api.stop()


def test_a_server_of_any_model_starts_before_its_first_one_was_found(engine: ScriptedEngine, tmp_path: Path) -> None:
    """Nobody has looked for it so far: it is only expected where it will be."""
    owner = ScriptedOwner(short(tmp_path) / "control.sock", [row(MODEL_ID, engine, tmp_path / "missing")])
    (tmp_path / "api").mkdir()
    try:
        api = serve(tmp_path / "api", owner, engine, tmp_path / "missing", any_model=True)
        assert httpx.get(f"{api.url}/v1/models", timeout=DEADLINE).json()["data"][0]["state"] == "unloaded"
        api.stop()
    finally:
        owner.stop()


def test_a_key_for_one_model_hears_nothing_of_the_others(
    shared_owner: ScriptedOwner, owner: ScriptedOwner, engine: ScriptedEngine, model_path: Path, tmp_path: Path
) -> None:
    """Why its own model waits names who is in its way; and to be looked for, a model need not be listed."""
    limited, owning, whole = new_key(), new_key(), new_key()
    keys = [{"id": "one", "sha256": key_hash(limited), "scopes": ["use"], "models": [SECOND]}]
    keys.append({"id": "its-admin", "sha256": key_hash(owning), "scopes": ["admin"], "models": [SECOND]})
    keys.append({"id": "all", "sha256": key_hash(whole), "scopes": ["use"]})
    api = serve(tmp_path, shared_owner, engine, model_path, load_patience_seconds=PATIENCE, any_model=True, keys=keys)
    client = httpx.Client(base_url=api.url, timeout=DEADLINE)
    one, its_admin, every = ({"authorization": f"Bearer {key}"} for key in (limited, owning, whole))
    question = {"model": SECOND, "messages": HELLO}
    why = "no room: 6 GiB are taken by acme/secret"

    def seen() -> bool:
        return any(each["detail"] == why for each in client.get("/health", headers=every).json()["models"])

    try:
        owner.set(SECOND, WAITING, detail=why)
        eventually(seen, "the table")
        with client.stream("POST", "/v1/chat/completions", json={**question, "stream": True}, headers=one) as stream:
            told = next(line for line in stream.iter_lines() if line.startswith(":"))
        assert told == f": waiting for {SECOND}"
        owner.set(SECOND, FAILED, detail=why)
        answers = [client.post("/v1/chat/completions", json=question, headers=one)]
        answers += [
            client.get(path, params={"model": SECOND}, headers=one)
            for path in ("/health", "/health/ready", "/cluster/status", "/model/info", "/v1/models")
        ]
        answers.append(client.post("/cache/clear", json={"model": SECOND}, headers=its_admin))
        assert [each.status_code for each in answers] == [503, 200, 503, 200, 503, 200, 503]
        assert not [each.text for each in answers if "secret" in each.text]
        assert why in client.post("/v1/chat/completions", json=question, headers=every).text
        assert [json.dumps(next_frame(api.url, key)).count(why) for key in (limited, whole)] == [0, 1]
        asked = len(owner.asked)
        nobody = client.post("/v1/chat/completions", json={**question, "model": "nobody"}, headers=one)
        assert nobody.status_code == 404
        assert "acme/stored" not in nobody.text
        assert len(owner.asked) == asked, "the owner looks for nothing for it"
    finally:
        client.close()
        api.stop()


def test_all_models_are_listed_with_their_state(http: httpx.Client, owner: ScriptedOwner) -> None:
    owner.wait_seen(owner.set(SECOND, LOADING, progress=0.25, booked_bytes=5, ranks=2, nodes=("mini1",), until=7.5))
    first, second = http.get("/v1/models").json()["data"]
    assert (first["id"], first["state"], first["loaded"], first["context_length"]) == (MODEL_ID, "ready", True, 256)
    assert (second["id"], second["state"], second["loaded"], second["size"]) == (SECOND, "loading", False, 5)
    assert http.get(f"/v1/models/{SECOND}").json() == second
    for path in ("/health", "/cluster/status"):
        shown = http.get(path).json()
        assert shown["model"] == MODEL_ID
        assert [each["id"] for each in shown["models"]] == [MODEL_ID, SECOND]
        brief = shown["models"][1]
        assert (brief["state"], brief["progress"], brief["booked_bytes"]) == ("loading", 0.25, 5)
        assert (brief["ranks"], brief["nodes"], brief["until"]) == (2, ["mini1"], 7.5)
    for path in ("/health", "/cluster/status", "/model/info", "/health/ready"):
        assert http.get(path, params={"model": "nobody"}).status_code == 404
    assert http.get("/cluster/status", params={"model": SECOND}).json()["state"] == "loading"
    assert http.get("/health/ready", params={"model": SECOND}).status_code == 503
    assert http.get("/health/ready").status_code == 200


def test_a_server_of_several_is_ready_when_its_first_model_made_room(http: httpx.Client, owner: ScriptedOwner) -> None:
    eventually(lambda: http.get("/health/ready").json()["state"] == "ready", "the first one is loaded")
    for state in (DRAINING, UNLOADED, LOADING):
        owner.wait_seen(owner.set(MODEL_ID, state))
        ready = http.get("/health/ready")
        assert (ready.status_code, ready.json()["state"]) == (200, state.name.lower())


def test_models_are_loaded_and_unloaded_by_request(
    http: httpx.Client, background: ThreadPoolExecutor, owner: ScriptedOwner
) -> None:
    loading = background.submit(http.post, "/models/load", json={"model": "second-model", "force": True})
    asked = owner.wait_asked()
    assert (asked.name, asked.force) == (SECOND, True)
    owner.set(SECOND, READY)
    loaded = loading.result(DEADLINE)
    assert (loaded.status_code, loaded.json()["state"], loaded.json()["told"]) == (200, "ready", "it is being loaded")
    begun = http.post("/models/unload", json={"model": SECOND, "wait": False})
    assert begun.status_code == 202
    unloading = background.submit(http.post, "/models/unload", json={"model": SECOND})
    owner.wait_asked(3)
    owner.set(SECOND, UNLOADED)
    assert (unloading.result(DEADLINE).status_code, unloading.result().json()["state"]) == (200, "unloaded")


def test_a_load_that_is_ended_has_ended_when_its_processes_have(
    http: httpx.Client, background: ThreadPoolExecutor, owner: ScriptedOwner
) -> None:
    owner.wait_seen(owner.set(SECOND, LOADING))
    ending = background.submit(http.post, "/models/unload", json={"model": SECOND})
    owner.wait_asked()
    owner.wait_seen(owner.set(SECOND, LOADING, detail="ends"))
    assert not ending.done()
    owner.set(SECOND, UNLOADED)
    assert (ending.result(DEADLINE).status_code, ending.result().json()["state"]) == (200, "unloaded")


def test_what_the_owner_refuses_is_told_in_its_words(
    http: httpx.Client, background: ThreadPoolExecutor, owner: ScriptedOwner
) -> None:
    owner.refusal = grpc.StatusCode.FAILED_PRECONDITION, "it takes 9.0 GB and 2.0 are free"
    refused = http.post("/models/load", json={"model": SECOND})
    assert refused.status_code == 409
    assert "9.0 GB and 2.0 are free" in refused.json()["error"]["message"]
    failing = background.submit(http.post, "/models/load", json={"model": SECOND})
    owner.wait_asked(2)
    owner.wait_seen(owner.set(SECOND, FAILED, detail="no memory"))
    assert failing.result(DEADLINE).json()["error"]["code"] == "model_failed"


def test_a_server_with_one_model_has_nothing_to_load(
    api: ApiProcess,
) -> None:
    assert httpx.post(f"{api.url}/models/load", json={"model": "tiny"}, timeout=DEADLINE).status_code == 409


@pytest.fixture
def impatient(tmp_path: Path, owner: ScriptedOwner, engine: ScriptedEngine, model_path: Path) -> Iterator[httpx.Client]:
    api = serve(tmp_path, owner, engine, model_path, load_patience_seconds=PATIENCE)
    with httpx.Client(base_url=api.url, timeout=DEADLINE) as client:
        yield client
    api.stop()


def test_patience_ends_with_how_far_the_model_is(
    impatient: httpx.Client, background: ThreadPoolExecutor, owner: ScriptedOwner
) -> None:
    """All of them wait at the same time, for as long as patience lasts."""
    owner.set(SECOND, LOADING, progress=0.5, detail="reading tensors")
    eventually(lambda: impatient.get(f"/v1/models/{SECOND}").json()["state"] == "loading", "the table")
    refused = [
        background.submit(impatient.post, path, json={"model": SECOND, **PROTOCOLS[path]})
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/completions")
    ]
    loading = background.submit(impatient.post, "/models/load", json={"model": SECOND})
    body = {"model": SECOND, "stream": True, "messages": HELLO}
    with impatient.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        said = [line for line in response.iter_lines() if line]
    assert said[0].startswith(": loading")
    assert json.loads(said[-1].removeprefix("data: "))["error"]["code"] == "engine_not_ready"
    for each in refused:
        assert each.result(DEADLINE).status_code == 503
        assert each.result().headers["retry-after"]
    told = {"state": "loading", "progress": 0.5, "detail": "reading tensors"}
    assert {name: refused[-1].result().json()[name] for name in told} == told
    assert loading.result(DEADLINE).status_code == 202


def test_an_engine_that_is_lost_under_a_loaded_model_is_waited_for(
    ask: Ask, owner: ScriptedOwner, engine: ScriptedEngine
) -> None:
    """As ever: the owner says that the model is loaded, and its group sees to the next engine."""
    owner.wait_seen(owner.set(SECOND, READY))
    engine.next(say_until_cancelled([]), say([70], finish=pb.STOP))
    answer = ask()
    engine.wait_for_run()
    engine.die()
    assert answer.result(DEADLINE).status_code == 200


def test_metrics_tell_who_waits_for_which_model_and_keep_what_an_unloaded_one_counted(
    many_api: ApiProcess, ask: Ask, owner: ScriptedOwner, engine: ScriptedEngine
) -> None:
    def state() -> list[str]:
        found = scrape(many_api.url)
        names = [each.name for each in ModelState]
        return [n for n in names if found.value("chorus_model_state", model_name=SECOND, state=n.lower())]

    def generated() -> float:
        return scrape(many_api.url).value("chorus_generation_tokens_total", model_name=SECOND)

    before = generated()
    engine.next(say([70, 71]))
    assert state() == ["UNLOADED"]
    answer = ask()
    owner.wait_for_demand(SECOND, waiting=1)
    assert scrape(many_api.url).value("chorus_num_requests_waiting", model_name=SECOND) == 1
    owner.set(SECOND, READY)
    usage = answer.result(DEADLINE).json()["usage"]
    eventually(lambda: bool(scrape(many_api.url).value("chorus_engine_up", model_name=SECOND)), "its engine is heard")
    owner.wait_seen(owner.set(SECOND, UNLOADED))
    assert state() == ["UNLOADED"]
    assert generated() == before + usage["completion_tokens"]
    assert scrape(many_api.url).value("chorus_engine_up", model_name=SECOND) == 0
    assert scrape(many_api.url).value("chorus_num_requests_waiting", model_name=SECOND) == 0


def test_a_pull_is_waited_for_and_shown_in_bytes_meanwhile(
    http: httpx.Client, owner: ScriptedOwner, background: ThreadPoolExecutor
) -> None:
    asked = background.submit(http.post, "/models/pull", json={"model": "acme/new"})
    assert owner.wait_asked().name == "acme/new"
    owner.show_pull(PullRow("acme/new", "downloading acme/new", 30, 100, started_at=STARTED))
    running = {"model": "acme/new", "state": "running", "detail": "downloading acme/new", "started_at": STARTED}
    running |= {"done_bytes": 30, "total_bytes": 100}
    eventually(lambda: http.get("/models/pulls").json() == {"pulls": [running]}, "the pull is shown")
    assert not asked.done()
    owner.show_pull(PullRow("acme/new", "it is here", 100, 100, True, started_at=STARTED))
    assert (asked.result(DEADLINE).status_code, asked.result().json()["state"]) == (200, "done")


def test_who_does_not_wait_for_a_pull_is_told_that_it_is_under_way(http: httpx.Client, owner: ScriptedOwner) -> None:
    begun = http.post("/models/pull", json={"model": "acme/later", "wait": False})
    assert (begun.status_code, begun.json()["state"], begun.json()["total_bytes"]) == (202, "running", None)


def test_a_pull_that_fails_or_is_refused_says_why(http: httpx.Client, owner: ScriptedOwner, ask: Ask) -> None:
    owner.refusal = grpc.StatusCode.FAILED_PRECONDITION, "two are being pulled: wait for one of them"
    refused = http.post("/models/pull", json={"model": "acme/new"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "refused_by_owner")
    assert refused.json()["error"]["message"] == "Two are being pulled: wait for one of them."
    begun = http.post("/models/pull", json={"model": "acme/broken", "wait": False})
    owner.show_pull(PullRow("acme/broken", "downloading", 1, 2, True, "the disk is full", STARTED))
    eventually(
        lambda: {"failed"} == {p["state"] for p in http.get("/models/pulls").json()["pulls"] if "broken" in p["model"]},
        "the pull has failed",
    )
    assert begun.status_code == 202


def test_a_plan_is_passed_on_as_its_owner_made_it(http: httpx.Client, owner: ScriptedOwner) -> None:
    none = {"fits": False, "plan": None, "reason": "needs 2 GB more", "missing_bytes": 2, "hints": ["add a node"]}
    owner.plans = json.dumps({"model": SECOND, "today": none, "then": {**none, "fits": True, "plan": {"split": [1]}}})
    told = http.post("/cluster/plan", json={"model": SECOND.partition("/")[2], "add": ["16GB:10"]})
    assert told.json() == json.loads(owner.plans)
    assert Plans.model_validate(told.json())
    asked = owner.wait_asked()
    assert (asked.name, list(asked.add)) == (SECOND, ["16GB:10"])
    assert http.post("/cluster/plan", json={"add": ["x"] * 9}).status_code == 400
    assert http.post("/cluster/plan", json={"add": ["x" * 65]}).status_code == 400
    owner.refusal = grpc.StatusCode.UNIMPLEMENTED, "nobody can say"
    assert http.post("/cluster/plan").status_code == 409
