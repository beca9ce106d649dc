"""What a user sets in the configuration reaches the front end, and does something there."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from chorus.cli import app
from chorus.config.file import ConfigError
from chorus.config.front_end import ApiSettings
from chorus.config.sections import Limits
from chorus.config.sources import load
from chorus.deploy.front_end import Access, api_settings, listen, model_settings
from chorus.messages.proto import engine_pb2 as pb
from chorus.models import LocalModel
from tests.api.conftest import ApiProcess, settings_for
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, say

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Hi"}]
# Each unlike its default.
GIVEN: dict[str, Any] = {
    "max_body_bytes": 5000,
    "body_timeout_seconds": 3.0,
    "request_timeout_seconds": 4.0,
    "max_body_values": 500,
    "max_messages": 20,
    "max_logprobs": 5000,
    "max_tools_characters": 3000,
    "max_grammar_characters": 2000,
    "max_schema_values": 300,
    "max_nesting": 30,
    "max_detokenize_tokens": 40,
    "max_preparing": 6,
    "max_stop_characters": 11,
    "max_stop_strings": 2,
    "max_logit_biases": 2,
    "max_choices": 2,
    "max_tools": 1,
    "max_inputs": 2,
    "max_stored_responses": 7,
    "max_stored_bytes": 8000,
    "max_remembered_answers": 33,
    "max_remembered_bytes": 34,
    "keep_alive_seconds": 9.0,
    "connect_timeout_seconds": 1.0,
    "describe_timeout_seconds": 1.5,
    "shutdown_grace_seconds": 0.5,
    "max_connections": 100,
    "max_strangers": 20,
    "head_timeout_seconds": 2.0,
    "idle_timeout_seconds": 7.0,
    "write_timeout_seconds": 6.0,
}


@pytest.fixture(scope="module")
def limited(
    shared_engine: ScriptedEngine, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiProcess]:
    """Everything that the tests below look at is set at once: each of them is about one setting."""
    names = ("max_stop_strings", "max_logit_biases", "max_choices", "max_tools", "max_inputs", "max_body_bytes")
    limits = {**{name: GIVEN[name] for name in names}, "max_stored_responses": 0}
    settings = settings_for(shared_engine, model_path, limits=limits, embeddings=True, pooling="mean")
    api = ApiProcess(tmp_path_factory.mktemp("limited"), settings)
    api.wait_until_live()
    yield api
    api.stop()


def front_end_settings(folder: Path, environment: dict[str, str]) -> ApiSettings:
    settings = load(environment=environment, folder=folder).settings
    model = LocalModel(name="tiny", id="acme/tiny", path=folder)
    with contextlib.closing(listen("127.0.0.1", 0)) as listener:
        served = model_settings(settings, model, "unix:/nowhere", folder)
        return api_settings(settings, (served,), listener, Access())


def test_every_limit_of_the_api_can_be_set(tmp_path: Path) -> None:
    assert set(GIVEN) == set(Limits.model_fields)
    given = front_end_settings(tmp_path, {f"CHORUS_API__{name.upper()}": str(value) for name, value in GIVEN.items()})
    assert given.limits.model_dump() == GIVEN


def test_what_is_no_limit_reaches_the_front_end_too(tmp_path: Path) -> None:
    (tmp_path / "chorus.yaml").write_text(
        "api: {cors_origins: ['https://chat.example'], tool_parser: llama3, embeddings: true, pooling: mean}\n"
        "cache: {per_key: true}\n"
    )
    given = front_end_settings(tmp_path, {})
    assert (given.cors_origins, given.models[0].tool_parser) == (("https://chat.example",), "llama3")
    assert (given.models[0].embeddings, given.models[0].pooling) == (True, "mean")
    assert (given.client_rules, given.cache_per_key) == (True, True)
    assert not front_end_settings(tmp_path, {"CHORUS_API__CLIENT_RULES": "false"}).client_rules


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"cors_origin": ["https://x"]}, "did you mean api.cors_origins"),
        ({"cors_origins": ["chat.example"]}, "chat.example is no origin"),
        ({"cors_origins": ["https://chat.example/path"]}, "without a path"),
        ({"keep_alive_seconds": 0}, "greater than 0"),
        ({"pooling": "max"}, "'mean' or 'last'"),
    ],
)
def test_a_wrong_setting_of_the_api_is_named(tree: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load(overrides={"api": tree}, environment={}, folder=tmp_path)


def test_config_show_says_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chorus.yaml").write_text("api: {max_tools: 3}\n")
    monkeypatch.setenv("CHORUS_API__CORS_ORIGINS", "https://a.example,https://b.example")
    shown = json.loads(CliRunner().invoke(app, ["config", "show", "--json"]).stdout)
    assert shown["api.cors_origins"] == {
        "value": ["https://a.example", "https://b.example"],
        "origin": "environment: CHORUS_API__CORS_ORIGINS",
    }
    assert shown["api.max_tools"]["origin"].endswith("chorus.yaml")
    assert shown["api.keep_alive_seconds"] == {"value": 15.0, "origin": "default"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tool-parser", "nonsense"], "api.tool_parser: no output parser is called 'nonsense'"),
        (["--cors-origin", "nonsense"], "nonsense is no origin"),
    ],
)
def test_serve_refuses_wrong_flags_before_it_starts(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["serve", "no-such-model", *arguments], env={"COLUMNS": "300"})
    assert result.exit_code != 0
    assert message in result.output


@pytest.mark.parametrize(
    ("limit", "path", "body", "field"),
    [
        ("max_stop_strings", CHAT, {"messages": QUESTION, "stop": ["a", "b", "c"]}, "stop"),
        ("max_logit_biases", CHAT, {"messages": QUESTION, "logit_bias": {"1": 1, "2": 1, "3": 1}}, "logit_bias"),
        ("max_choices", CHAT, {"messages": QUESTION, "n": 3}, "n"),
        (
            "max_tools",
            CHAT,
            {"messages": QUESTION, "tools": [{"type": "function", "function": {"name": name}} for name in "ab"]},
            "tools",
        ),
        ("max_inputs", "/v1/embeddings", {"input": ["a", "b", "c"]}, "input"),
    ],
)
def test_a_request_over_a_limit_is_refused_by_name(
    limited: ApiProcess, engine: ScriptedEngine, limit: str, path: str, body: dict[str, Any], field: str
) -> None:
    response = httpx.post(f"{limited.url}{path}", json=body, timeout=DEADLINE)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == field
    assert str(GIVEN[limit]) in response.json()["error"]["message"]


def test_a_body_over_its_limit_is_refused(limited: ApiProcess, engine: ScriptedEngine) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 6000}]}
    assert httpx.post(f"{limited.url}{CHAT}", json=body, timeout=DEADLINE).status_code == 413


def test_stored_responses_are_bounded(limited: ApiProcess, engine: ScriptedEngine) -> None:
    engine.default = say([70])
    first = httpx.post(f"{limited.url}/v1/responses", json={"input": "Hi"}, timeout=DEADLINE).json()["id"]
    assert httpx.get(f"{limited.url}/v1/responses/{first}", timeout=DEADLINE).status_code == 404


def test_the_owner_chooses_the_pooling(limited: ApiProcess, engine: ScriptedEngine) -> None:
    assert httpx.post(f"{limited.url}/v1/embeddings", json={"input": "x"}, timeout=DEADLINE).status_code == 200
    assert engine.embedded[-1].pooling == pb.EmbedRequest.MEAN


def test_headers_without_an_end_are_refused(api: ApiProcess) -> None:
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
        answer = b""
        try:
            for _ in range(100):
                client.sendall(b"x-filler: " + b"y" * 8192 + b"\r\n")
            answer = client.recv(4096)
        except ConnectionError:
            return  # closed before all of it was written
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
