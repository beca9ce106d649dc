from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from chorus.models.store import Store
from tests.models.hub_server import HubServer


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees or touches the models of whoever runs it."""
    monkeypatch.setenv("CHORUS_CACHE", str(tmp_path / "chorus"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    point_hub_at("http://127.0.0.1:9", monkeypatch)


@pytest.fixture
def store() -> Store:
    return Store.default()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as server:
        point_hub_at(server.url, monkeypatch)
        yield server


def point_hub_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads its environment once, when it is imported."""
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
