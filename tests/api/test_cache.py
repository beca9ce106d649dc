"""What clients and commands are told of stored prefixes: usage, facts, and how to forget them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from chorus.api.usage import sum_up
from chorus.cli import app
from chorus.messages.engine import Timing
from chorus.messages.proto import engine_pb2 as pb
from chorus.serving.generation import AnswerEnd, Usage
from tests.api.conftest import ApiProcess
from tests.api.scripted_engine import ScriptedEngine, say

HELLO = [{"role": "user", "content": "Hello, who are you?"}]
CHAT = ("/v1/chat/completions", {"messages": HELLO})
TEXT = ("/v1/completions", {"prompt": "Once upon a time"})
RESPONSES = ("/v1/responses", {"input": "Hello, who are you?"})
MESSAGES = ("/v1/messages", {"messages": HELLO, "max_tokens": 9})
KEPT = pb.CacheDescription(
    entries=12, tokens=3400, bytes=5 << 20, budget_bytes=6 << 30, live_bytes=1 << 20, prompt_tokens=8000,
    cached_tokens=6000, evicted_tokens=70, preempted=2, disk_bytes=3 << 30, disk_budget_bytes=20 << 30,
    restored_tokens=900, conversations=4,
)  # fmt: skip


def last_usage(http: httpx.Client, path: str, body: dict[str, Any], stream: bool) -> dict[str, Any]:
    """The last usage that an answer tells."""
    if not stream:
        return dict(http.post(path, json=body).raise_for_status().json()["usage"])
    more = {"stream_options": {"include_usage": True}} if path in (CHAT[0], TEXT[0]) else {}
    answer = http.post(path, json={**body, **more, "stream": True}).raise_for_status()
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    told = [event.get("usage") or (event.get("response") or {}).get("usage") for event in events]
    return dict([usage for usage in told if usage][-1])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("path", "body"), [CHAT, TEXT, RESPONSES], ids=["chat", "completions", "responses"])
def test_openais_usage_tells_how_much_of_the_prompt_was_stored(
    http: httpx.Client, engine: ScriptedEngine, path: str, body: dict[str, Any], stream: bool
) -> None:
    engine.next(say([70, 71], cached=3, stored=1))
    usage = last_usage(http, path, body, stream)
    prompt, details = ("input_tokens",) * 2 if path == RESPONSES[0] else ("prompt_tokens",) * 2
    assert usage[prompt] == len(engine.last.prompt)
    assert usage[f"{details}_details"] == {"cached_tokens": 3}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_anthropics_usage_tells_what_was_read_what_was_stored_and_what_is_neither(
    http: httpx.Client, engine: ScriptedEngine, stream: bool
) -> None:
    engine.next(say([70, 71], cached=3, stored=2))
    usage = last_usage(http, *MESSAGES, stream)
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (3, 2)
    assert usage["input_tokens"] == len(engine.last.prompt) - 5


def test_performance_tells_what_was_found_and_what_was_stored(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.next(say([70, 71], cached=3, stored=2))
    performance = http.post(CHAT[0], json=CHAT[1]).json()["performance"]
    assert (performance["cached_tokens"], performance["stored_tokens"]) == (3, 2)


def end(choice: int, cached: int, stored: int) -> AnswerEnd:
    return AnswerEnd(choice, "stop", Usage(10, 2, cached, 0, stored), Timing(0.0, 1.0, 1.0, 10, cached, 2, stored))


def test_a_prompt_that_gets_several_answers_was_stored_as_far_as_all_of_them_found_it() -> None:
    """The second answer to the first prompt came first, and the first one found what it had computed."""
    usage = sum_up([end(1, 4, 5), end(0, 9, 0), end(2, 0, 9), end(3, 9, 0)], None, per_prompt=2).usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.stored_tokens) == (20, 4, 14)


def test_health_and_model_info_tell_what_is_kept(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.description.cache.CopyFrom(KEPT)
    facts = http.get("/health").json()["engine"]["cache"]
    assert facts == http.get("/model/info").json()["cache"]
    assert (facts["enabled"], facts["reason"], facts["hit_rate"]) == (True, None, 0.75)
    assert {name: facts[name] for name in ("entries", "tokens", "bytes", "budget_bytes", "conversations")} == {
        "entries": 12,
        "tokens": 3400,
        "bytes": 5 << 20,
        "budget_bytes": 6 << 30,
        "conversations": 4,
    }


def test_health_tells_why_nothing_is_kept(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.description.cache.CopyFrom(pb.CacheDescription(off="the text of plamo3 depends on where a prompt is cut"))
    facts = http.get("/health").json()["engine"]["cache"]
    assert (facts["enabled"], facts["hit_rate"]) == (False, None)
    assert "plamo3" in facts["reason"]
    engine.description.ClearField("cache")
    assert http.get("/health").json()["engine"]["cache"] is None


def test_the_cache_is_cleared_over_http(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.description.cache.CopyFrom(KEPT)
    answer = http.post("/cache/clear")
    assert (answer.status_code, answer.json()) == (200, {"entries": 12, "bytes": 5 << 20})
    assert http.post("/cache/clear", json={"model": "tiny"}).json() == {"entries": 0, "bytes": 0}
    assert http.post("/cache/clear", json={"whatever": 1}).status_code == 400
    assert http.post("/cache/clear", json={"model": "nobody"}).status_code == 404
    engine.description.state = pb.LOADING
    assert http.post("/cache/clear").status_code == 503
    assert http.get("/cache/clear").status_code == 405


def test_a_foreign_page_cannot_clear_the_cache(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.description.cache.CopyFrom(KEPT)
    assert http.post("/cache/clear", headers={"origin": "https://elsewhere.example"}).status_code == 403
    assert engine.description.cache.entries == 12


def chorus(*words: str) -> tuple[int, str]:
    shown = CliRunner().invoke(app, ["cache", *words], env={"COLUMNS": "200"})
    return shown.exit_code, shown.output


def test_the_command_shows_what_is_kept_and_clears_it(api: ApiProcess, engine: ScriptedEngine) -> None:
    engine.description.cache.CopyFrom(KEPT)
    code, shown = chorus("--url", api.url)
    assert code == 0
    for part in (
        "12 with 3,400 tokens",
        "5 MiB stored, 1 MiB running, of 6.0 GiB",
        "75.0%",
        "6,000 of 8,000",
        "20.0 GiB",
    ):
        assert part in shown
    code, shown = chorus("--url", api.url, "--json")
    assert json.loads(shown)["restored_tokens"] == 900
    assert chorus("clear", "--url", api.url) == (0, "forgot 12 entries, 5 MiB on the rank that held most\n")
    assert json.loads(chorus("clear", "--url", api.url, "--json")[1]) == {"entries": 0, "bytes": 0}


def test_the_command_says_why_nothing_is_kept(api: ApiProcess, engine: ScriptedEngine) -> None:
    engine.description.cache.CopyFrom(pb.CacheDescription(off="cache.enabled is false"))
    assert "cache.enabled is false" in chorus("--url", api.url)[1]
    engine.description.ClearField("cache")
    engine.description.state = pb.LOADING
    code, shown = chorus("--url", api.url)
    assert (code, shown.count("\n")) == (1, 1)
    assert "the engine is loading" in shown


def test_the_command_says_in_one_line_that_nobody_answers() -> None:
    code, shown = chorus("--url", "http://127.0.0.1:1")
    assert (code, shown.count("\n")) == (1, 1)
    assert "nothing answers at http://127.0.0.1:1" in shown
