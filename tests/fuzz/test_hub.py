"""What a hub says, or somebody who poses as one, is a model or one clear error."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from chorus.models import ModelError, resolve
from chorus.models.hub.record import HubVersion, kept_record
from chorus.models.parts import remote_tensors
from tests.fuzz.foreign import fewer, texts, values
from tests.fuzz.test_safetensors import headers
from tests.models.conftest import point_hub_at
from tests.models.hub_server import HubServer, Repo

NAME = "org/tiny"
COMMIT = "a" * 40


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def hub(home: Path) -> Iterator[HubServer]:
    with pytest.MonkeyPatch.context() as patch, HubServer() as server:
        patch.setenv("CHORUS_CACHE", str(home / "chorus"))
        patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        point_hub_at(server.url, patch)
        server.repos[NAME] = Repo({"config.json": b"{}", "model.safetensors": b""})
        yield server
        server.told = None


siblings = st.fixed_dictionaries(
    {}, optional={"rfilename": texts | st.just("config.json"), "size": values, "lfs": values}
)
answers = values | st.fixed_dictionaries(
    {"id": st.just(NAME)},
    optional={
        "sha": st.just(COMMIT) | texts,
        "siblings": values | st.lists(siblings | values, max_size=3),
        "config": values,
    },
)


@fewer
@given(answer=answers.map(json.dumps) | st.text(max_size=20))
def test_whatever_is_said_about_a_model_it_is_there_or_refused(hub: HubServer, home: Path, answer: str) -> None:
    hub.told = answer.encode()
    with suppress(ModelError):
        resolve(NAME, weights=False)
    assert {path.name for path in home.iterdir()} <= {"hub", "chorus"}


@pytest.mark.parametrize("sha", ["../../../outside", "/tmp/outside", "..", "a\0b", ""])
def test_a_commit_that_is_none_leads_nowhere(hub: HubServer, home: Path, sha: str) -> None:
    hub.told = json.dumps({"id": NAME, "sha": sha, "siblings": [{"rfilename": "config.json", "size": 2}]}).encode()
    with pytest.raises(ModelError):
        resolve(NAME, weights=False)
    assert {path.name for path in home.iterdir()} <= {"hub", "chorus"}


@fewer
@given(
    header=headers.map(json.dumps).map(str.encode) | st.binary(max_size=30),
    claimed=st.none() | st.integers(0, 2**64 - 1),
)
def test_the_weights_at_a_hub_are_known_or_refused(hub: HubServer, header: bytes, claimed: int | None) -> None:
    hub.told = None
    content = struct.pack("<Q", len(header) if claimed is None else claimed) + header
    hub.repos[NAME] = Repo({"config.json": b"{}", "model.safetensors": content})
    with suppress(ModelError):
        for info in remote_tensors(resolve(NAME, weights=False)).values():
            assert all(type(size) is int and size >= 0 for size in (*info.shape, info.start, info.end))


entries: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {
        "sizes": values | st.dictionaries(texts, values),
        "tensors": values | st.dictionaries(texts, st.lists(values, min_size=5, max_size=5)),
    }
)


@given(kept=values | entries)
def test_a_record_of_any_values_is_read_or_of_no_use(hub: HubServer, home: Path, kept: Any) -> None:
    version = HubVersion(NAME, COMMIT)
    file = home / "chorus" / "hub" / f"org--tiny@{COMMIT}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept))
    kept_record(version)
