"""Clients of every protocol, streaming and not, whose engine is lost under them: they see a pause and nothing else."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from chorus.messages.proto import engine_pb2 as pb
from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import VOCABULARY, ApiProcess, eventually, open_requests, settings_for
from tests.api.scripted_engine import DEADLINE, Died, Run, ScriptedEngine, play, say_until_cancelled
from tests.support.leaving import asked
from tests.support.sockets import short

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
HELLO = [{"role": "user", "content": "Weather?"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}

# Each is told apart by how many tokens it asks for: path, body, what the model says.
ASKED: dict[int, tuple[str, dict[str, Any], str]] = {
    201: ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2, "stop": ["end"]}, "It rains, the end is near"),
    202: ("/v1/chat/completions", {"tools": [TOOL]}, f"<think>Hm.</think>See: {CALL}"),
    203: ("/v1/completions", {"prompt": "Once", "n": 2, "logprobs": 1}, "upon a time"),
    204: ("/v1/responses", {"input": "Weather?", "tools": [{**TOOL["function"], "type": "function"}]}, f"See: {CALL}"),
    205: ("/v1/messages", {"tools": [{"name": "weather", "input_schema": WEATHER}]}, f"<think>Hm.</think>Yes: {CALL}"),
}
VOLATILE = {"id", "created", "created_at", "completed_at", "performance", "item_id", "call_id", "request_id"}


def body_of(key: int, stream: bool) -> tuple[str, dict[str, Any]]:
    path, more, _ = ASKED[key]
    limit = {"/v1/responses": "max_output_tokens"}.get(path, "max_tokens")
    messages = {"messages": HELLO} if path in ("/v1/chat/completions", "/v1/messages") else {}
    usage = {"stream_options": {"include_usage": True}} if stream and path.endswith("completions") else {}
    return path, {limit: key, "stream": stream, **messages, **usage, **more}


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(short(tmp_path_factory.mktemp("run")) / "engine.sock", VOCABULARY, context_length=4000)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def front(
    mortal: ScriptedEngine, tool_model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiProcess]:
    api = serve(tmp_path_factory.mktemp("api"), mortal, tool_model_path, patience=DEADLINE)
    yield api
    api.stop()


def serve(folder: Path, engine: ScriptedEngine, model_path: Path, patience: float) -> ApiProcess:
    limits, recovery = {"keep_alive_seconds": 0.1}, {"patience_seconds": patience}
    settings = settings_for(engine, model_path, limits=limits, recovery=recovery, embeddings=True)
    api = ApiProcess(folder, settings)
    api.wait_until_live()
    return api


@pytest.fixture
def engine(mortal: ScriptedEngine) -> ScriptedEngine:
    mortal.reset()
    mortal.before_describing = lambda: None
    mortal.description.progress, mortal.description.detail = 1.0, ""
    return mortal


@pytest.fixture
def http(front: ApiProcess, engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=front.url, timeout=DEADLINE) as client:
        assert client.get("/health/ready").status_code == 200
        yield client
        eventually(lambda: open_requests(client) == 0, "nothing is open any more")


def plays(
    engine: ScriptedEngine, tokenizer: Tokenizer, meanwhile: Callable[[Run, str | int], None] | None = None
) -> None:
    """Every request gets its text, whichever engine says it."""
    texts = {key: tokenizer.encode(text, special=False) for key, (_, _, text) in ASKED.items()}

    def script(run: Run) -> None:
        play(texts[run.submit.max_tokens], cached=2, meanwhile=meanwhile)(run)

    engine.default = script


def answer(http: httpx.Client, key: int, stream: bool) -> list[Any]:
    """What the client is told, less what no two answers share."""
    path, body = body_of(key, stream)
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    if not stream:
        return [steady(response.json())]
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    events = [steady(json.loads(line)) for line in lines if line != "[DONE]"]
    said = [event for event in events if event.get("type") != "ping"]
    # Choices come side by side; each by itself is in order.
    return sorted(said, key=lambda event: (event.get("choices") or [{}])[0].get("index", 9))


def steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: steady(part) for name, part in value.items() if name not in VOLATILE}
    return [steady(part) for part in value] if isinstance(value, list) else value


class EveryPhase:
    """Each request loses its engine in every phase, once."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._turn = threading.Lock()
        self.phases: defaultdict[int, list[str | int]] = defaultdict(lambda: ["accept", 0, 3, "finish"])

    def __call__(self, run: Run, phase: str | int) -> None:
        with self._turn:
            left = self.phases[run.submit.max_tokens]
            if phase not in left:
                return
            left.remove(phase)
            self._engine.die()
        raise Died


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_the_same_whatever_engines_are_lost(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    plays(engine, tokenizer)
    expected = {key: answer(http, key, stream) for key in ASKED}
    assert "weather" in json.dumps(expected[205])
    deaths = EveryPhase(engine)
    plays(engine, tokenizer, deaths)
    before = len(engine.runs)
    with ThreadPoolExecutor(len(ASKED)) as threads:
        answers = {key: threads.submit(answer, http, key, stream) for key in ASKED}
        for key in ASKED:
            assert answers[key].result(DEADLINE) == expected[key]
    # What follows a stop string is never said.
    assert {key: left for key, left in deaths.phases.items() if left} in ({}, {201: ["finish"]})
    assert any(run.submit.resumed for run in engine.runs[before:])


def test_clients_hear_that_they_are_not_forgotten_while_the_next_engine_loads(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    held: list[Run] = []

    def meanwhile(run: Run, phase: str | int) -> None:
        if phase == 2 and not run.submit.resumed:
            held.append(run)
            run.cancelled.wait(DEADLINE)
            raise Died

    def load() -> None:
        if engine.description.state == pb.LOADING:
            engine.description.progress += 0.001

    told = dict.fromkeys(ASKED, "")

    def listen(key: int) -> None:
        path, body = body_of(key, stream=True)
        with http.stream("POST", path, json=body) as response:
            for chunk in response.iter_text():
                told[key] += chunk

    def kept_alive() -> list[int]:
        return [text.count("event: ping" if key == 205 else ": keep-alive") for key, text in told.items()]

    plays(engine, tokenizer, meanwhile)
    engine.before_describing = load
    with ThreadPoolExecutor(len(ASKED)) as threads:
        listening = [threads.submit(listen, key) for key in ASKED]
        # Each was taken and has spoken, so that the next engine is asked to go on.
        eventually(lambda: len(held) == len(ASKED) + 1, "all run")
        engine.description.state, engine.description.progress = pb.LOADING, 0.0
        engine.description.detail = "loading again"
        engine.die()
        ready = http.get("/health/ready")
        assert (ready.status_code, ready.json()["state"]) == (503, "loading")
        assert ready.json()["detail"] == "loading again"
        assert http.get("/health").json()["requests"]["open"] == len(ASKED) + 1
        before = kept_alive()
        eventually(lambda: all(n > m + 2 for n, m in zip(kept_alive(), before, strict=True)), "signs of life")
        engine.description.state = pb.READY
        for ended in listening:
            ended.result(DEADLINE)
    for text in told.values():
        assert '"error":{' not in text


def test_new_requests_wait_for_the_next_engine(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    plays(engine, tokenizer)
    expected = {key: answer(http, key, stream=True) for key in ASKED}
    engine.stop()
    try:
        assert http.get("/health/ready").json()["state"] == "unreachable"
        with ThreadPoolExecutor(len(ASKED) + 2) as threads:
            answers = {key: threads.submit(answer, http, key, True) for key in ASKED}
            embedding = threads.submit(http.post, "/v1/embeddings", json={"input": "hello"})
            whole = threads.submit(answer, http, 201, False)
            eventually(lambda: open_requests(http) == len(ASKED) + 2, "they wait")
            engine.description.started_at += 1
            engine.start()
            assert {key: told.result(DEADLINE) for key, told in answers.items()} == expected
            assert embedding.result(DEADLINE).status_code == 200
            assert len(whole.result(DEADLINE)) == 1
    except BaseException:
        engine.start()
        raise


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_during_the_wait_leave_nothing(
    front: ApiProcess, http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    plays(engine, tokenizer)
    engine.next(*(say_until_cancelled([70]) for _ in range(3)))
    path, body = body_of(201, stream)
    with asked(front.url + path, body), asked(front.url + path, body), asked(front.url + path, body):
        engine.wait_for_run(2)
        engine.description.state = pb.LOADING
        engine.die()
        with asked(front.url + path, body):
            eventually(lambda: open_requests(http) == 4, "a new one waits, too")
    eventually(lambda: open_requests(http) == 0, "all are forgotten")
    engine.description.state = pb.READY
    runs = len(engine.runs)
    assert answer(http, 201, stream)
    assert len(engine.runs) == runs + 1


@pytest.fixture
def impatient(engine: ScriptedEngine, tool_model_path: Path, tmp_path: Path) -> Iterator[httpx.Client]:
    api = serve(tmp_path, engine, tool_model_path, patience=3)
    with httpx.Client(base_url=api.url, timeout=DEADLINE) as client:
        assert client.get("/health/ready").status_code == 200
        yield client
    api.stop()


def test_patience_ends_in_an_error_of_the_protocols_own_form(
    impatient: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.default = say_until_cancelled(tokenizer.encode("It", special=False))

    def told(key: int, stream: bool) -> tuple[int, str]:
        path, body = body_of(key, stream)
        response = impatient.post(path, json=body)
        return response.status_code, response.text

    with ThreadPoolExecutor(2 * len(ASKED)) as threads:
        streams = {key: threads.submit(told, key, True) for key in ASKED}
        wholes = {key: threads.submit(told, key, False) for key in ASKED}
        eventually(lambda: len(engine.runs) == 2 * (len(ASKED) + 1), "all run")
        engine.description.state = pb.LOADING
        engine.die()
        reason = "nothing has moved for 3 s"
        for key, whole in wholes.items():
            status, text = whole.result(DEADLINE)
            assert (status, reason in text) == (503, True), (key, text)
        for stream in streams.values():
            status, text = stream.result(DEADLINE)
            assert status == 200
            last = json.loads([line for line in text.splitlines() if line.startswith("data: {")][-1][6:])
            assert reason in json.dumps(last)
            assert ("error" in last) or last["type"] in ("error", "response.failed"), last
            assert "[DONE]" not in text
        # Nobody is left waiting for what does not come.
        status, text = told(201, False)
        assert (status, reason in text) == (503, True)
    engine.description.state = pb.READY


def test_a_request_that_ends_every_engine_is_refused_and_the_others_go_on(
    http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    plays(engine, tokenizer)
    expected = answer(http, 202, stream=True)
    begun = threading.Event()
    died = int(engine.description.started_at)

    def meanwhile(run: Run, phase: str | int) -> None:
        if run.submit.max_tokens == 201 and phase == 1:
            assert begun.wait(DEADLINE)
            engine.die("fault", "rank 0 ended with signal SEGV")
            raise Died
        if run.submit.max_tokens == 202 and phase == 0 and engine.description.started_at < died + 2:
            begun.set()
            run.cancelled.wait(DEADLINE)
            raise Died

    plays(engine, tokenizer, meanwhile)
    with ThreadPoolExecutor(1) as threads:
        innocent = threads.submit(answer, http, 202, True)
        path, body = body_of(201, stream=False)
        response = http.post(path, json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_failed")
        assert "This request ended the engine 3 times: rank 0 ended with signal SEGV" in response.text
        assert innocent.result(DEADLINE) == expected
    runs = len(engine.runs)
    assert "ended the engine 3 times" in http.post(path, json=body | {"seed": 8}).text
    assert len(engine.runs) == runs
