"""A real server with keys and a hub: a stream is cancelled in its middle, a model pulled and used, plans are made."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from chorus.security.key_file import add_key
from tests.api.conftest import eventually
from tests.models.hub_server import HubServer, Repo
from tests.support.server import ChorusServer
from tests.support.sockets import short

DEADLINE = 120.0
PULLED = "acme/pulled"
NO_END = {"0": -100, "2": -100}
LONG = {"prompt": "many machines", "stream": True, "max_tokens": 3000, "temperature": 0, "logit_bias": NO_END}


@dataclass
class Guarded:
    server: ChorusServer
    hub: HubServer
    keys: dict[str, str]

    def client(self, key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=DEADLINE)


@pytest.fixture(scope="module")
def guarded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Serves one model by name, and any other that its machine has. Its hub is on this machine."""
    folder = tmp_path_factory.mktemp("guarded")
    keys_file = folder / "keys.json"
    keys = {name: add_key(keys_file, name) for name in ("anna", "ben")}
    keys["operator"] = add_key(keys_file, "operator", scopes=("admin",))
    files = {file.name: file.read_bytes() for file in tiny_model.iterdir() if file.is_file()}
    with HubServer({PULLED: Repo(files)}) as hub:
        environment = {
            "CHORUS_KEYS_FILE": str(keys_file),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(folder / "hf"),
            "CHORUS_CACHE": str(folder / "chorus"),
            "CHORUS_STATE": str(short(folder) / "state"),
        }
        arguments = ["--any-model", "--memory", "8GB", "--context", "4096"]
        with ChorusServer(tiny_model, arguments, folder, environment) as server:
            yield Guarded(server, hub, keys)


@pytest.fixture
def as_key(guarded: Guarded) -> Iterator[Callable[[str], httpx.Client]]:
    opened: list[httpx.Client] = []

    def client(key: str) -> httpx.Client:
        opened.append(guarded.client(key))
        return opened[-1]

    yield client
    for each in opened:
        each.close()


def requests_of(http: httpx.Client, which: str) -> dict[str, Any]:
    return {entry["id"]: entry for entry in http.get("/requests").raise_for_status().json()[which]}


def test_a_stream_is_cancelled_in_its_middle_and_the_others_go_on(as_key: Callable[[str], httpx.Client]) -> None:
    anna, ben, operator = map(as_key, ("anna", "ben", "operator"))
    others: list[str] = []

    def read_on() -> None:
        others.append(ben.post("/v1/completions", json={**LONG, "max_tokens": 1500}).text)

    reading = threading.Thread(target=read_on)
    with anna.stream("POST", "/v1/completions", json=LONG, headers={"x-request-id": "to-be-cancelled"}) as response:
        lines = response.iter_lines()
        next(lines)
        reading.start()
        eventually(lambda: len(requests_of(operator, "running")) == 2, "both run")
        assert set(requests_of(anna, "running")) == {"to-be-cancelled"}
        entry = requests_of(operator, "running")["to-be-cancelled"]
        assert (entry["key"], entry["state"], entry["endpoint"]) == ("anna", "decode", "/v1/completions")
        assert 0 < entry["generated_tokens"] < LONG["max_tokens"]
        assert entry["prompt_tokens"] > 0
        assert operator.post("/requests/cancel", json={"id": "to-be-cancelled"}).json()["cancelled"] == 1
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert events[-1]["error"]["code"] == "request_cancelled"
    reading.join(DEADLINE)
    assert others[0].endswith("data: [DONE]\n\n")
    eventually(lambda: len(requests_of(operator, "recent")) == 2, "both have ended")
    ended = requests_of(operator, "recent")
    assert {entry["state"] for entry in ended.values()} == {"cancelled", "length"}
    assert 0 < ended["to-be-cancelled"]["generated_tokens"] < LONG["max_tokens"]
    # The engine works on nothing more: it was told, and did not only lose its reader.
    eventually(lambda: operator.get("/health").json()["engine"]["running"] == 0, "the engine has nothing to do")


def test_a_model_is_pulled_by_its_name_and_then_served(guarded: Guarded, as_key: Callable[[str], httpx.Client]) -> None:
    anna, operator = map(as_key, ("anna", "operator"))
    ask = {"model": PULLED, "prompt": "many", "max_tokens": 4, "temperature": 0}
    assert anna.post("/v1/completions", json=ask).status_code == 404
    refused = anna.post("/models/pull", json={"model": PULLED})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_required")
    assert not guarded.hub.requests

    done = operator.post("/models/pull", json={"model": PULLED})
    assert (done.status_code, done.json()["state"]) == (200, "done")
    assert done.json()["done_bytes"] == done.json()["total_bytes"] > 0
    assert [entry["state"] for entry in anna.get("/models/pulls").json()["pulls"]] == ["done"]
    pulled = anna.post("/v1/completions", json=ask)
    assert pulled.status_code == 200, pulled.text
    first = anna.post("/v1/completions", json={**ask, "model": "tiny"}).json()
    assert pulled.json()["choices"][0]["text"] == first["choices"][0]["text"]  # the same weights


def test_nothing_but_names_is_pulled(guarded: Guarded, as_key: Callable[[str], httpx.Client]) -> None:
    operator, before = as_key("operator"), len(guarded.hub.requests)
    for name in ("/etc", "../tiny", "~/x", "http://127.0.0.1/x", "file:///etc/passwd", "tiny", "a/b/c", "a/../b", ""):
        refused = operator.post("/models/pull", json={"model": name})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "refused_by_owner"), name
    assert len(guarded.hub.requests) == before
    unknown = operator.post("/models/pull", json={"model": "acme/unknown"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (409, "pull_failed")
    assert "There is no model acme/unknown" in unknown.json()["error"]["message"]


def test_a_plan_says_who_would_hold_what_with_one_more_machine(as_key: Callable[[str], httpx.Client]) -> None:
    anna, operator = map(as_key, ("anna", "operator"))
    told = anna.post("/cluster/plan", json={"add": ["laptop=16GB:10", "24GB"]}).raise_for_status().json()
    assert told["model"] == "tiny"
    (today,) = told["today"]["plan"]["ranks"]
    assert today["memory_bytes"] == 8_000_000_000  # what models may take here, and not what is free by chance
    nodes = [rank["node"] for rank in told["then"]["plan"]["ranks"]]
    left_out = [node["node"] for node in told["then"]["plan"]["excluded"]]
    assert sorted([*nodes, *left_out]) == sorted([today["node"], "laptop", "added2"])
    assert anna.post("/cluster/plan").json()["then"] is None

    for wrong in (["16"] * 9, ["many"], ["16GB:10,8GB"], ["9" * 40 + "GB"], ["1GB:99999999"], [f"{today['node']}=8GB"]):
        assert anna.post("/cluster/plan", json={"add": wrong}).status_code in (400, 409), wrong
    assert anna.post("/cluster/plan", json={"model": "acme/elsewhere"}).status_code == 404
    assert operator.post("/cluster/plan", json={"model": "/etc"}).status_code == 404


def test_a_model_of_the_hub_is_planned_without_its_weights(
    guarded: Guarded, as_key: Callable[[str], httpx.Client]
) -> None:
    operator, described = as_key("operator"), "acme/only-planned"
    guarded.hub.repos[described] = guarded.hub.repos[PULLED]
    told = operator.post("/cluster/plan", json={"model": described, "add": ["16GB:10"]}).raise_for_status().json()
    assert told["today"]["fits"]
    asked = [request for request in guarded.hub.requests if described in request[1]]
    fetched = [path for method, path, part in asked if method == "GET" and not part]
    assert fetched
    assert not any(path.endswith(".safetensors") for path in fetched)
