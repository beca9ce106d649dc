from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import pytest

import chorus
from chorus.api.served import read_config
from chorus.config.front_end import ModelSettings
from chorus.messages.proto import engine_pb2 as pb
from tests.api.conftest import MODEL_ID, ApiProcess, eventually
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, say

HELLO = [{"role": "user", "content": "a secret question"}]


def test_the_model_list_has_the_context_length(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL_ID
    assert model.context_length == model.max_model_len == 256  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [MODEL_ID, "tiny", "default_model"])
def test_a_model_is_found_by_each_of_its_names(client: openai.OpenAI, name: str) -> None:
    assert client.models.retrieve(name).id == MODEL_ID


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}', "LlamaForCausalLM"),
        ('{"architectures": "LlamaForCausalLM"}', "LlamaForCausalLM"),
        ('{"architectures": null, "model_type": "llama"}', "llama"),
        ('{"architectures": [null], "model_type": "llama"}', "llama"),
        ('{"architectures": []}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_the_architecture_is_what_config_json_says_in_whatever_form(
    tmp_path: Path, config: str, named: str | None
) -> None:
    (tmp_path / "config.json").write_text(config)
    assert read_config(tmp_path).architecture == named


@pytest.mark.parametrize(
    ("model_id", "name", "aliases", "listed"),
    [
        ("acme/tiny", "tiny", (), ["tiny"]),
        ("acme/tiny", "tiny", ("tiny", "gpt-4", "gpt-4"), ["tiny", "gpt-4"]),
        ("tiny", "tiny", ("tiny", "gpt-4"), ["gpt-4"]),
        ("acme/tiny", "tiny", ("acme/tiny",), ["tiny"]),
    ],
)
def test_each_other_name_of_a_model_is_listed_once(
    model_id: str, name: str, aliases: tuple[str, ...], listed: list[str], tmp_path: Path
) -> None:
    settings = ModelSettings(engine_address="unix:none", id=model_id, name=name, aliases=aliases, path=tmp_path)
    assert list(settings.names) == [model_id, *listed]


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found"


def test_health_sums_up_model_version_and_configuration(http: httpx.Client) -> None:
    health = http.get("/health").json()
    assert health["status"] == "ok"
    assert health["model"] == MODEL_ID
    assert health["version"] == chorus.__version__
    assert health["configuration"] == {"ranks": 1, "dtype": "float32"}


def test_ready_says_how_far_the_load_is_until_it_is_done(
    start_api: Callable[..., ApiProcess], engine: ScriptedEngine
) -> None:
    engine.description.state = pb.LOADING
    engine.description.progress = 0.25
    engine.description.detail = "reading tensors"
    http = httpx.Client(base_url=start_api().url, timeout=DEADLINE)
    try:
        response = http.get("/health/ready")
        assert response.status_code == 503
        assert response.json() == {"state": "loading", "progress": 0.25, "detail": "reading tensors"}
        assert http.get("/health/live").status_code == 200
        assert http.get("/health").json()["status"] == "loading"
        refused = http.post("/v1/chat/completions", json={"messages": HELLO})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert refused.json()["progress"] == 0.25
        assert "25%" in refused.json()["error"]["message"]
        assert http.post("/v1/chat/completions", json={"messages": []}).status_code == 400
    finally:
        engine.description.progress, engine.description.detail = 1.0, ""
        engine.description.state = pb.READY
    engine.next(say([70]))
    assert http.get("/health/ready").status_code == 200
    assert http.post("/v1/chat/completions", json={"messages": HELLO}).status_code == 200
    http.close()


def test_model_info_tells_everything_but_paths(http: httpx.Client) -> None:
    info = http.get("/model/info").json()
    assert info["architecture"] == "LlamaForCausalLM"
    assert (info["context_length"], info["vocabulary"], info["number_of_devices"]) == (256, 512, 1)
    assert [info["ranks"][0][name] for name in ("layers", "first_layer", "last_layer")] == ["0-3", 0, 3]
    assert info["dtype"] == "float32"
    for path in ("/model/info", "/health", "/v1/models", "/"):
        assert "/secret/place" not in http.get(path).text


def test_a_rank_is_called_by_its_device_and_its_layers_as_people_count_them(
    start_api: Callable[..., ApiProcess], engine: ScriptedEngine, tmp_path: Path
) -> None:
    """Rank 0 as the configuration calls it, the others as the coordinator last found them, by their host otherwise."""
    ranks = [("here", 9, 30), ("there", 3, 9), ("elsewhere", 0, 0)]
    running = [
        {"name": "mini3", "ranks": [{"rank": 1, "running": True}]},
        {"name": "mini2", "ranks": [{"rank": 1, "running": False}]},
    ]
    (tmp_path / "cluster.json").write_text(json.dumps({"nodes": running}))
    before = list(engine.description.ranks)
    engine.description.ClearField("ranks")
    for number, (host, first, after) in enumerate(ranks):
        engine.description.ranks.add(rank=number, host=host, first_layer=first, last_layer=after)
    try:
        api = start_api(rank_names=["mini1"], status_file=str(tmp_path / "cluster.json"))
        found = httpx.get(f"{api.url}/cluster/status", timeout=DEADLINE).json()["ranks"]
    finally:
        engine.description.ClearField("ranks")
        engine.description.ranks.extend(before)
    assert [rank["node"] for rank in found] == ["mini1", "mini3", "elsewhere"]
    assert [rank["layers"] for rank in found] == ["9-29", "3-8", None]
    assert [(rank["first_layer"], rank["last_layer"]) for rank in found] == [(9, 29), (3, 8), (None, None)]


def test_the_root_lists_the_endpoints(http: httpx.Client) -> None:
    summary = http.get("/").json()
    assert summary["service"] == "chorus"
    assert {"/v1/chat/completions", "/v1/models", "/health"} <= set(summary["endpoints"])


@pytest.mark.parametrize(("offered", "kept"), [("abc-123", True), ("x" * 200, False), ("bad id", False), (None, False)])
def test_a_sane_request_id_is_kept_and_any_other_replaced(http: httpx.Client, offered: str | None, kept: bool) -> None:
    headers = {} if offered is None else {"x-request-id": offered}
    returned = http.get("/health/live", headers=headers).headers["x-request-id"]
    assert (returned == offered) == kept
    assert returned


def test_a_request_is_one_log_line_without_its_text(
    http: httpx.Client, api: ApiProcess, engine: ScriptedEngine
) -> None:
    engine.next(say([70, 71]))
    headers = {"x-request-id": "logged-once", "authorization": "Bearer sk-secret-key"}
    http.post("/v1/chat/completions", json={"messages": HELLO}, headers=headers).raise_for_status()
    assert engine.last.id.endswith("logged-once")
    eventually(lambda: "logged-once" in api.log.read_text(), "the log line")
    log = api.log.read_text()
    (line,) = [entry for entry in map(json.loads, log.splitlines()) if entry.get("request_id") == "logged-once"]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (line["generated_tokens"], line["finish"], line["tokens_per_second"]) == (3, "stop", 1.0)
    assert line["prompt_tokens"] > 0
    assert line["ttft"] > 0
    assert "secret" not in log
