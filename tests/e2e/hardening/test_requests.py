"""Requests that are small to send and large to work on: each costs its sender an answer, and nobody else anything."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from chorus.messages.proto import engine_pb2 as pb
from tests.api.conftest import VOCABULARY, ApiProcess, settings_for
from tests.api.scripted_engine import DEADLINE, Run, ScriptedEngine, refuse, say
from tests.e2e.hardening.probe import PATIENCE, Probe
from tests.support.sockets import short
from tests.support.tiny_tokenizer import write_tiny_tokenizer

CHAT = "/v1/chat/completions"
HELLO = {"role": "user", "content": "hello"}
KEEP_ALIVE_SECONDS = 0.1


@pytest.fixture(scope="module")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(short(tmp_path_factory.mktemp("run")) / "engine.sock", VOCABULARY, context_length=100_000)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def shared_api(shared_engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    model = tmp_path_factory.mktemp("model")
    write_tiny_tokenizer(model, VOCABULARY)
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    settings = settings_for(shared_engine, model, limits={"keep_alive_seconds": KEEP_ALIVE_SECONDS})
    api = ApiProcess(tmp_path_factory.mktemp("api"), settings)
    api.wait_until_live()
    yield api
    api.stop()


@pytest.fixture
def engine(shared_engine: ScriptedEngine) -> ScriptedEngine:
    shared_engine.reset()
    return shared_engine


@pytest.fixture
def http(shared_api: ApiProcess, engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared_api.url, timeout=120) as client:
        yield client


def refusal(response: httpx.Response) -> tuple[str, str]:
    assert response.status_code == 400, response.text[:300]
    error = response.json()["error"]
    return error["param"], error["message"]


def peak_megabytes(api: ApiProcess) -> float:
    """The most memory that the process ever had."""
    status = Path(f"/proc/{api.process.pid}/status").read_text()
    return int(status.partition("\nVmHWM:")[2].split()[0]) / 1024


@pytest.mark.linux("the most memory a process ever had")
def test_long_stop_strings_do_not_cost_memory_for_every_choice(
    shared_api: ApiProcess, http: httpx.Client, engine: ScriptedEngine
) -> None:
    """Finding 9."""
    engine.default = say([70])
    http.post(CHAT, json={"messages": [HELLO], "n": 16})
    before = peak_megabytes(shared_api)
    body = {"messages": [HELLO], "stop": ["a" * 500_000], "n": 16}
    with Probe(shared_api.url, shared_api.process.pid) as probe:
        response = http.post(CHAT, json=body)
    assert peak_megabytes(shared_api) - before < 100
    assert probe.longest < PATIENCE
    field, message = refusal(response)
    assert field == "stop"
    assert "1024" in message


def test_a_long_history_of_calls_and_results_holds_up_nobody(
    shared_api: ApiProcess, http: httpx.Client, engine: ScriptedEngine
) -> None:
    """Finding 15."""
    calls = [{"type": "function_call", "call_id": str(n), "name": "f", "arguments": ""} for n in range(12_000)]
    results = [{"type": "function_call_output", "call_id": "unknown", "output": ""}] * 12_000
    with Probe(shared_api.url, shared_api.process.pid) as probe:
        response = http.post("/v1/responses", json={"input": [*calls, *results]})
    assert probe.longest < PATIENCE
    field, message = refusal(response)
    assert field == "input"
    assert "4096" in message


def test_the_longest_history_that_is_taken_is_answered(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.next(say([70]))
    calls = [{"type": "function_call", "call_id": str(n), "name": "f", "arguments": "{}"} for n in range(2048)]
    results = [{"type": "function_call_output", "call_id": str(n), "output": ""} for n in range(2048)]
    response = http.post("/v1/responses", json={"input": [*calls, *results]})
    assert response.status_code == 200


def asks(arguments: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [HELLO, {"role": "assistant", "tool_calls": [call]}, HELLO]}


@pytest.mark.parametrize("depth", [100, 100_000])
def test_deeply_nested_arguments_of_a_call_are_the_clients_mistake(
    http: httpx.Client, engine: ScriptedEngine, depth: int
) -> None:
    """Finding 19."""
    engine.default = say([70])
    response = http.post(CHAT, json=asks("[" * depth + "]" * depth))
    field, message = refusal(response)
    assert field == "messages[1].tool_calls[0].function.arguments"
    assert "64 levels" in message


def test_a_request_in_a_long_queue_hears_that_it_is_alive(http: httpx.Client, engine: ScriptedEngine) -> None:
    """Suspected: keep-alive comments began only after the first token."""
    heard = threading.Event()

    def queued(run: Run) -> None:
        run.accept()
        assert heard.wait(DEADLINE)
        run.finish(pb.STOP, tokens=[70])

    engine.next(queued)
    comments = 0
    try:
        with http.stream("POST", CHAT, json={"messages": [HELLO], "stream": True}, timeout=DEADLINE / 2) as response:
            for line in response.iter_lines():
                comments += line == ": keep-alive"
                if comments == 3:
                    heard.set()
    except httpx.ReadTimeout:
        heard.set()
    assert comments >= 3


def test_a_stream_that_is_refused_has_a_status_and_says_when_to_come_again(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.next(refuse(pb.OVERLOADED, "the queue is full"))
    response = http.post(CHAT, json={"messages": [HELLO], "stream": True})
    assert response.status_code == 429
    assert response.headers["retry-after"]


def test_tokens_are_made_text_while_others_are_served(shared_api: ApiProcess, http: httpx.Client) -> None:
    """Suspected: `/detokenize` worked on the event loop, on as many tokens as a body holds."""
    with Probe(shared_api.url, shared_api.process.pid) as probe:
        field, message = refusal(http.post("/detokenize", json={"tokens": [70] * 600_000}))
        assert http.post("/detokenize", json={"tokens": [70] * 262_144}).status_code == 200
    assert field == "tokens"
    assert "262144" in message
    assert probe.longest < PATIENCE
