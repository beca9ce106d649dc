"""API keys: who is let in, how often, how much at once, and what is told to those who are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from chorus.api.auth import Meter, find_key
from chorus.api.errors import ApiError
from chorus.cli import app
from chorus.messages.proto import engine_pb2 as pb
from chorus.security.key_file import add_key
from chorus.security.key_rules import ApiKey, key_hash, needs_keys, new_key, refusal_to_listen
from tests.api.conftest import MODEL_ID, ApiProcess, eventually, settings_for
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, say, say_until_cancelled
from tests.support.scrape import parse

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "a secret question"}]}
ALICE, BOB, CAROL, DAVE, ERIN, FRANK, OWN = (new_key() for _ in range(7))


@pytest.fixture(scope="module")
def guarded_api(
    shared_engine: ScriptedEngine, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiProcess]:
    keys = [
        {"id": "alice", "sha256": key_hash(ALICE)},  # as keys were written before there were scopes
        {"id": "bob", "sha256": key_hash(BOB), "max_concurrent": 1},
        {"id": "carol", "sha256": key_hash(CAROL), "requests_per_minute": 2},
        {"id": "dave", "sha256": key_hash(DAVE), "scopes": ["use"]},
        {"id": "erin", "sha256": key_hash(ERIN), "scopes": ["admin"], "models": ["another"]},
        {"id": "frank", "sha256": key_hash(FRANK), "scopes": ["use"], "models": ["another", "gpt-4"]},
    ]
    api = ApiProcess(
        tmp_path_factory.mktemp("guarded"),
        settings_for(shared_engine, model_path, keys=keys, own_key_sha256=key_hash(OWN)),
    )
    api.wait_until_live()
    yield api
    api.stop()


@pytest.fixture
def guarded(guarded_api: ApiProcess, engine: ScriptedEngine) -> Iterator[tuple[ApiProcess, httpx.Client]]:
    with httpx.Client(base_url=guarded_api.url, timeout=DEADLINE) as http:
        yield guarded_api, http


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_commands_of_whoever_serves_have_a_key_of_their_own(guarded: Any) -> None:
    _, http = guarded
    assert http.get("/cluster/status", headers=bearer(OWN)).status_code == 200
    assert "engine" in http.get("/health", headers=bearer(OWN)).json()


def test_a_known_key_is_let_in_and_owns_its_requests(guarded: Any, engine: ScriptedEngine) -> None:
    _, http = guarded
    engine.default = say([70])
    for headers in (bearer(ALICE), {"x-api-key": ALICE}):
        assert http.post(CHAT, json=HELLO, headers=headers).status_code == 200
        assert engine.last.owner == "alice"
    assert http.post(CHAT, json=HELLO, headers=bearer(BOB)).status_code == 200
    assert engine.last.owner == "bob"


@pytest.mark.parametrize(
    "headers",
    [{}, bearer("wrong"), {"authorization": "Bearer"}, bearer(ALICE[:-1]), {"authorization": f"Basic {ALICE}"}],
)
def test_anybody_else_is_refused_in_each_protocols_shape(
    guarded: Any, engine: ScriptedEngine, headers: dict[str, str]
) -> None:
    _, http = guarded
    response = http.post(CHAT, json=HELLO, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] in ("missing_api_key", "invalid_api_key")
    anthropic = http.post("/v1/messages", json={}, headers=headers)
    assert (anthropic.status_code, anthropic.json()["error"]["type"]) == (401, "authentication_error")
    for path in ("/v1/models", "/", "/model/info", "/openapi.json", "/nothing"):
        assert http.get(path, headers=headers).status_code == 401
    assert engine.runs == []


def test_a_command_about_the_cache_needs_a_key(guarded: Any) -> None:
    api, _ = guarded
    for words in ([], ["clear"]):
        keyless = CliRunner().invoke(app, ["cache", *words, "--url", api.url], env={"OPENAI_API_KEY": ""})
        assert (keyless.exit_code, keyless.output.count("\n")) == (1, 1)
        assert "key" in keyless.output
        assert CliRunner().invoke(app, ["cache", *words, "--url", api.url, "--api-key", ALICE]).exit_code == 0


def test_what_concerns_everybody_takes_an_admin(guarded: Any, engine: ScriptedEngine) -> None:
    _, http = guarded
    engine.default = say([70])
    engine.description.cache.CopyFrom(pb.CacheDescription(entries=12))
    refused = http.post("/cache/clear", headers=bearer(DAVE))
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (403, "permission_error", "admin_required")
    assert "'dave'" in error["message"]
    assert "`chorus keys new NAME --admin`" in error["message"]
    assert http.post("/cache/clear", headers=bearer(ERIN)).status_code == 404  # an admin, but of another model
    for path in ("/models/load", "/models/unload", "/models/pull"):
        refused = http.post(path, headers=bearer(DAVE), json={"model": MODEL_ID})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_required"), path
    assert http.post("/models/pull", headers=bearer(ERIN), json={"model": "acme/x"}).status_code == 404
    # Nobody owns the models of this front end, so that nobody can fetch or plan any.
    for path in ("/models/pull", "/cluster/plan"):
        assert http.post(path, headers=bearer(ALICE), json={"model": MODEL_ID}).status_code == 409
    assert http.post("/cluster/plan", headers=bearer(ERIN), json={"model": MODEL_ID}).status_code == 404
    assert engine.description.cache.entries == 12
    for admin in (ALICE, OWN):
        assert http.post("/cache/clear", headers=bearer(admin)).status_code == 200
    assert engine.description.cache.entries == 0
    for path in ("/", "/v1/models", "/model/info", "/cluster/status"):
        assert http.get(path, headers=bearer(DAVE)).json() == http.get(path, headers=bearer(ALICE)).json()
    assert http.post(CHAT, json=HELLO, headers=bearer(DAVE)).status_code == 200


def test_a_command_says_that_its_key_is_not_enough(guarded: Any) -> None:
    api, _ = guarded
    shown = CliRunner().invoke(app, ["cache", "clear", "--url", api.url, "--api-key", DAVE])
    assert (shown.exit_code, shown.output.count("\n")) == (1, 1)
    assert "`chorus keys new NAME --admin`" in shown.output


def test_a_key_for_a_model_may_call_it_by_any_of_its_names(guarded: Any, engine: ScriptedEngine) -> None:
    _, http = guarded
    engine.default = say([70])
    for named in ({}, {"model": "gpt-4"}, {"model": "tiny"}, {"model": MODEL_ID}, {"model": "default_model"}):
        assert http.post(CHAT, json={**HELLO, **named}, headers=bearer(FRANK)).status_code == 200
    assert http.post(CHAT, json={**HELLO, "model": "another"}, headers=bearer(FRANK)).status_code == 404
    assert [entry["id"] for entry in http.get("/v1/models", headers=bearer(FRANK)).json()["data"]] == [MODEL_ID]


POSTS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, HELLO),
    ("/chat/completions", HELLO),
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/responses", {"input": "x"}),
    ("/v1/messages", {**HELLO, "max_tokens": 1}),
    ("/v1/messages/count_tokens", HELLO),
    ("/v1/embeddings", {"input": "x"}),
    ("/tokenize", {"prompt": "x"}),
    ("/detokenize", {"tokens": [70]}),
]


@pytest.mark.parametrize(("path", "body"), POSTS)
@pytest.mark.parametrize("named", [{}, {"model": MODEL_ID}, {"model": "tiny"}, {"model": "gpt-4"}])
def test_a_model_that_a_key_is_not_for_is_not_there(
    guarded: Any, engine: ScriptedEngine, path: str, body: dict[str, Any], named: dict[str, str]
) -> None:
    _, http = guarded
    answer = http.post(path, json={**body, **named}, headers=bearer(ERIN))
    assert answer.status_code == 404
    assert engine.runs == []
    if named and not path.startswith("/v1/messages"):
        unknown = http.post(path, json={**body, "model": "unheard-of"}, headers=bearer(ERIN))
        assert answer.json()["error"]["code"] == "model_not_found"
        assert answer.text.replace(named["model"], "unheard-of") == unknown.text


def test_whoever_has_a_key_for_other_models_learns_no_name(guarded: Any) -> None:
    _, http = guarded
    told = {path: http.get(path, headers=bearer(ERIN)) for path in ("/", "/health", "/v1/models", "/models")}
    told |= {path: http.get(path, headers=bearer(ERIN)) for path in ("/model/info", "/cluster/status", "/v1/models/x")}
    assert told["/v1/models"].json() == told["/models"].json() == {"object": "list", "data": []}
    assert told["/health"].json() == {"status": "ok"}
    assert told["/"].json()["model"] is None
    assert {told[path].status_code for path in ("/model/info", "/cluster/status", "/v1/models/x")} == {404}
    for answer in told.values():
        assert not any(f'"{name}"' in answer.text for name in (MODEL_ID, "tiny", "gpt-4"))
    assert http.get(f"/v1/models/{MODEL_ID}", headers=bearer(ERIN)).status_code == 404


def test_metrics_need_a_key_and_show_those_of_its_models_and_no_key(guarded: Any, engine: ScriptedEngine) -> None:
    _, http = guarded
    engine.default = say([70])
    assert http.post(CHAT, json=HELLO, headers=bearer(DAVE)).status_code == 200
    assert http.get("/metrics").status_code == 401
    seen = {key: parse(http.get("/metrics", headers=bearer(key)).text) for key in (ALICE, DAVE, OWN, ERIN, FRANK)}
    counted = {key: found.has("chorus_generation_tokens_total", model_name=MODEL_ID) for key, found in seen.items()}
    assert counted == {ALICE: True, DAVE: True, OWN: True, ERIN: False, FRANK: True}
    assert {name for name, _ in seen[ERIN].values} == {"chorus_build_info"}
    for name in ("alice", "dave", "secret"):
        assert name not in http.get("/metrics", headers=bearer(ALICE)).text


def test_probes_need_no_key_and_learn_little(guarded: Any) -> None:
    _, http = guarded
    for path in ("/health", "/health/live", "/health/ready"):
        assert http.get(path).status_code == 200
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/health/ready").json()["detail"] == ""
    assert http.get("/health", headers=bearer(ALICE)).json()["configuration"] is not None
    assert http.get("/health", headers=bearer(FRANK)).json()["configuration"] is None, "it names all models"


@pytest.mark.parametrize("path", ["/health", "/health/ready"])
@pytest.mark.parametrize("headers", [{}, bearer(ERIN)], ids=["no key", "another's"])
def test_whoever_has_no_key_for_a_model_cannot_find_it_by_probing(
    guarded: Any, path: str, headers: dict[str, str]
) -> None:
    _, http = guarded
    for name in (MODEL_ID, "tiny", "gpt-4", MODEL_ID[:-1]):
        asked, unknown = (http.get(path, params={"model": each}, headers=headers) for each in (name, "unheard-of"))
        assert asked.status_code == 404
        assert asked.text.replace(name, "unheard-of") == unknown.text
    assert http.get(path, params={"model": MODEL_ID}, headers=bearer(FRANK)).status_code == 200


def test_a_key_that_asks_too_often_is_told_when_to_come_back(guarded: Any, engine: ScriptedEngine) -> None:
    _, http = guarded
    engine.default = say([70])
    statuses = [http.post(CHAT, json=HELLO, headers=bearer(CAROL)).status_code for _ in range(2)]
    refused = http.post(CHAT, json=HELLO, headers=bearer(CAROL))
    assert [*statuses, refused.status_code] == [200, 200, 429]
    assert 0 < int(refused.headers["retry-after"]) <= 30
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert http.get("/v1/models", headers=bearer(CAROL)).status_code == 200
    assert http.post(CHAT, json=HELLO, headers=bearer(ALICE)).status_code == 200


def test_a_key_may_not_have_more_open_than_its_limit(guarded: Any, engine: ScriptedEngine) -> None:
    _, http = guarded
    engine.next(say_until_cancelled([70]))
    with http.stream("POST", CHAT, json={**HELLO, "stream": True}, headers=bearer(BOB)) as stream:
        lines = stream.iter_lines()
        next(lines)
        refused = http.post(CHAT, json=HELLO, headers=bearer(BOB))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "concurrency_limit_exceeded"
        assert refused.headers["retry-after"]
    engine.default = say([70])
    eventually(lambda: http.post(CHAT, json=HELLO, headers=bearer(BOB)).status_code == 200, "room again")


def test_one_key_cannot_continue_anothers_response(guarded: Any, engine: ScriptedEngine) -> None:
    _, http = guarded
    engine.default = say([70])
    made = http.post("/v1/responses", json={"input": "x"}, headers=bearer(ALICE)).json()
    path = f"/v1/responses/{made['id']}"
    assert http.get(path, headers=bearer(ALICE)).status_code == 200
    assert http.get(path, headers=bearer(BOB)).status_code == 404


def test_neither_keys_nor_prompts_are_in_the_log(guarded: Any, engine: ScriptedEngine) -> None:
    api, http = guarded
    engine.default = say([70])
    http.post(CHAT, json=HELLO, headers={**bearer(ALICE), "x-request-id": "the-good"})
    http.post(CHAT, json=HELLO, headers={**bearer("stolen-key"), "x-request-id": "the-bad"})
    eventually(lambda: "the-bad" in api.log.read_text(), "both lines")
    log = api.log.read_text()
    for text in (ALICE, key_hash(ALICE), "stolen-key", "secret"):
        assert text not in log
    lines = {line.get("request_id"): line for line in map(json.loads, log.splitlines())}
    assert lines["the-good"]["key"] == "alice"
    assert lines["the-bad"]["status"] == 401


def test_keys_are_made_and_removed_while_the_server_runs(
    engine: ScriptedEngine, start_api: Callable[..., ApiProcess]
) -> None:
    engine.default = say([70])
    api = start_api(keys=[{"id": "alice", "sha256": key_hash(ALICE), "requests_per_minute": 2}])
    with httpx.Client(base_url=api.url, timeout=DEADLINE) as http:

        def status(key: str) -> int:
            return http.post(CHAT, json=HELLO, headers=bearer(key)).status_code

        def write(text: str) -> None:
            aside = api.keys_file.with_suffix(".new")
            aside.write_text(text)
            aside.rename(api.keys_file)

        assert status(ALICE) == 200
        secret = add_key(api.keys_file, "bob")
        assert (status(secret), status(ALICE), status(ALICE)) == (200, 200, 429)  # what Alice has used is not forgotten
        assert http.post("/cache/clear", headers=bearer(secret)).status_code == 403
        write(api.keys_file.read_text().replace('"use"', '"admin"'))
        assert http.post("/cache/clear", headers=bearer(secret)).status_code == 200
        write("no keys at all")
        assert status(secret) == 200
        assert "stay in force" in api.log.read_text()
        write(json.dumps({"keys": []}))
        assert (status(secret), http.get("/v1/models").status_code) == (401, 401)
        api.keys_file.unlink()
        assert (status(secret), http.get("/v1/models").status_code) == (401, 401)


def test_without_keys_everybody_is_admin(http: httpx.Client) -> None:
    assert http.post("/cache/clear").status_code == 200


def test_answers_carry_security_headers(http: httpx.Client) -> None:
    headers = http.get("/health").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in headers


def test_other_origins_are_let_in_only_where_they_are_named(start_api: Callable[..., ApiProcess]) -> None:
    keys = [{"id": "alice", "sha256": key_hash(ALICE)}]
    api = start_api(cors_origins=["https://chat.example"], keys=keys)
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    allowed = httpx.options(api.url + CHAT, headers={"origin": "https://chat.example", **asked}, timeout=DEADLINE)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://chat.example"
    other = httpx.options(api.url + CHAT, headers={"origin": "https://evil.example", **asked}, timeout=DEADLINE)
    assert "access-control-allow-origin" not in other.headers


def test_a_key_is_found_by_its_hash() -> None:
    keys = [ApiKey(id="alice", sha256=key_hash(ALICE)), ApiKey(id="bob", sha256=key_hash(BOB))]
    assert find_key(keys, BOB) == keys[1]
    assert find_key(keys, ALICE) == keys[0]
    assert find_key(keys, "") is None
    assert new_key() != new_key()


def test_an_allowance_refills_evenly() -> None:
    now = [0.0]
    meter = Meter(ApiKey(id="x", sha256="0" * 64, requests_per_minute=6), clock=lambda: now[0])
    for _ in range(6):
        meter.enter()
    with pytest.raises(ApiError) as refused:
        meter.enter()
    assert refused.value.headers["retry-after"] == "10"
    now[0] = 10.0
    meter.enter()
    with pytest.raises(ApiError):
        meter.enter()
    now[0] = 1000.0
    for _ in range(6):
        meter.enter()
    with pytest.raises(ApiError):
        meter.enter()


@pytest.mark.parametrize(
    ("host", "reachable"),
    [
        ("127.0.0.1", False),
        ("127.8.0.1", False),
        ("::1", False),
        ("[::1]", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("192.168.1.5", True),
        ("studio.local", True),
        ("", True),
    ],
)
def test_an_address_that_others_can_reach_needs_keys(host: str, reachable: bool) -> None:
    assert needs_keys(host) == reachable
    assert (refusal_to_listen(host, [], insecure=False) is not None) == reachable
    assert refusal_to_listen(host, [], insecure=True) is None
    assert refusal_to_listen(host, ["key"], insecure=False) is None
