"""A front end without an engine says so in sentences, with what to do; never in gRPC's words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import ApiProcess, eventually, settings_for
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, say
from tests.support.plain_words import grpcs_words
from tests.support.sockets import short

HELLO = [{"role": "user", "content": "hello"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 5},
    "/v1/embeddings": {"input": "hello"},
    "/cache/clear": {},
}
SEEN = ["/health", "/health/ready", "/cluster/status", "/model/info", "/"]


@pytest.fixture(scope="module")
def lone(
    tmp_path_factory: pytest.TempPathFactory, model_path: Path
) -> Iterator[tuple[ApiProcess, ScriptedEngine, httpx.Client]]:
    """A front end with an engine of its own, which is gone."""
    folder = tmp_path_factory.mktemp("lone")
    engine = ScriptedEngine(short(folder) / "engine.sock", 512)
    engine.stop()
    settings = settings_for(engine, model_path, embeddings=True, recovery={"patience_seconds": 0.1})
    api = ApiProcess(folder, settings)
    api.wait_until_live()
    with httpx.Client(base_url=api.url, timeout=DEADLINE) as http:
        yield api, engine, http
    api.stop()
    engine.stop()


def message(response: httpx.Response) -> str:
    assert response.status_code == 503, response.text
    return str(response.json()["error"]["message"])


@pytest.mark.parametrize("path", ASKED)
def test_an_engine_that_was_never_there_is_a_503_with_a_remedy(lone: Any, path: str) -> None:
    api, _, http = lone
    told = message(http.post(path, json=ASKED[path]))
    assert told.startswith("The engine does not answer; ")
    assert "started again by itself" in told
    assert not grpcs_words(told)
    assert not grpcs_words(api.log.read_text())


@pytest.mark.parametrize("path", SEEN)
def test_whoever_looks_at_the_server_then_reads_no_address_of_a_socket(lone: Any, path: str) -> None:
    _, _, http = lone
    assert not grpcs_words(http.get(path).text)


def test_an_engine_that_is_lost_later_is_told_of_in_plain_words_too(lone: Any) -> None:
    """To whoever runs when it goes, and to whoever comes then."""
    api, engine, http = lone
    engine.start()
    eventually(lambda: http.get("/health/ready").status_code == 200, "the engine is found")
    engine.next(say([70]))
    assert http.post("/v1/chat/completions", json=ASKED["/v1/chat/completions"]).status_code == 200

    def goes(run: Any) -> None:
        run.accept()
        run.send(70)
        engine.stop()

    engine.next(goes)
    running = http.post("/v1/completions", json={"prompt": "hello", "stream": True})
    assert '"engine_lost"' in running.text
    told = [running.text, *(message(http.post(path, json=body)) for path, body in ASKED.items())]
    assert not grpcs_words("\n".join(told))
    assert not grpcs_words(api.log.read_text())
