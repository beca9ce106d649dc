"""Web pages of other sites, on a server that asks for no key."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.api.scripted_engine import say
from tests.e2e.hardening.front_end import DEADLINE, FrontEnd, front_end

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}]})


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    with front_end(tmp_path_factory.mktemp("local")) as running:
        running.engine.default = say([70])
        yield running


@pytest.fixture
def http(local: FrontEnd) -> Iterator[httpx.Client]:
    local.engine.runs.clear()
    with httpx.Client(base_url=local.api.url, timeout=DEADLINE) as client:
        yield client


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8100", "localhost.evil.example", "8.8.8.8", "[::2]", ""]
)
def test_a_name_that_was_made_to_lead_here_is_refused(local: FrontEnd, http: httpx.Client, host: str) -> None:
    """Finding 12."""
    refused = http.post(CHAT, content=BODY, headers={"host": host})
    assert refused.status_code == 421
    assert "api.hosts" in refused.json()["error"]["message"]
    assert local.engine.runs == []


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example", "content-type": "text/plain"},
        {"origin": "null", "content-type": "text/plain"},
        {"origin": "http://localhost:3000"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ],
)
def test_a_page_of_another_site_cannot_use_the_server(
    local: FrontEnd, http: httpx.Client, headers: dict[str, str]
) -> None:
    """Finding 12."""
    refused = http.post(CHAT, content=BODY, headers=headers)
    assert refused.status_code == 403
    assert "api.cors_origins" in refused.json()["error"]["message"]
    assert local.engine.runs == []


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/x-www-form-urlencoded"},
        {"host": "localhost"},
        {"host": "127.0.0.2:99"},
        {"host": "[::1]:8100"},
        {"host": "HOST.docker.internal"},
        {"host": f"{socket.gethostname().partition('.')[0]}.local"},
        {"host": "localhost:8100", "origin": "http://localhost:8100", "sec-fetch-site": "same-origin"},
    ],
)
def test_programs_and_our_own_pages_can(http: httpx.Client, headers: dict[str, str]) -> None:
    assert http.post(CHAT, content=BODY, headers=headers).status_code == 200


def test_a_link_elsewhere_may_lead_to_our_page_and_to_nothing_else(http: httpx.Client) -> None:
    navigation = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert http.get("/", headers=navigation).status_code == 200
    assert http.get("/v1/models", headers=navigation).status_code == 403
