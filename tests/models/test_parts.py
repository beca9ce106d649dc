from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from chorus.cluster.coordinator.sources import nobody_has
from chorus.cluster.transfer.share import SharedFile
from chorus.cluster.transfer.sources import FileSource
from chorus.models import ModelError, fetch_files, resolve
from chorus.models.parts import HubVersion, hub_version, missing_weights, resolve_description
from chorus.planning.facts import find_facts
from chorus.platform.storage.paths import cache_dir
from tests.models.hub_server import HubServer, Repo
from tests.support.tiny_model import write_tiny_model

NAME = "someone/split"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = write_tiny_model(tmp_path_factory.mktemp("model") / "split", "llama", shards=3, vocab_size=512)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def repo(hub: HubServer, files: dict[str, bytes]) -> Repo:
    hub.repos[NAME] = Repo(files)
    return hub.repos[NAME]


def weights(names: list[str]) -> list[str]:
    return sorted(name for name in names if name.endswith(".safetensors"))


def test_a_description_comes_without_weights_and_says_what_is_missing(hub: HubServer, repo: Repo) -> None:
    model = resolve_description(NAME)
    assert weights(hub.downloaded()) == []
    assert hub_version(model) == HubVersion(NAME, repo.commit)
    assert missing_weights(model) == {name: len(repo.files[name]) for name in weights(list(repo.files))}


def test_fetched_parts_are_missing_no_more(hub: HubServer, repo: Repo) -> None:
    model = resolve_description(NAME)
    first, *others = weights(list(repo.files))
    version = hub_version(model)
    assert version
    version.fetch([first])
    assert weights(hub.downloaded()) == [first]
    assert list(missing_weights(model)) == others


def test_the_version_stays_the_same_when_the_hub_has_a_newer_one(hub: HubServer, repo: Repo) -> None:
    model = resolve_description(NAME)
    version = hub_version(model)
    assert version
    hub.repos[NAME] = Repo({**repo.files, "extra.json": b"{}"})
    with pytest.raises(ModelError, match=f"has no revision {version.commit}"):
        version.fetch(weights(list(repo.files))[:1])


def test_a_model_that_is_whole_is_checked_and_asks_for_nothing(hub: HubServer, repo: Repo) -> None:
    resolve(NAME)
    asked = len(hub.downloaded())
    model = resolve_description(NAME)
    assert missing_weights(model) == {}
    assert len(hub.downloaded()) == asked


def test_a_folder_is_no_version_of_a_hub(hub: HubServer, files: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    model = resolve_description(str(folder))
    assert hub_version(model) is None
    assert missing_weights(model) == {}


def test_offline_a_model_in_parts_is_told_before_anything_starts(
    hub: HubServer, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_description(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="model-00001-of-00003"):
        resolve_description(NAME)


def test_a_file_that_cannot_be_had_is_named(hub: HubServer, repo: Repo) -> None:
    model = resolve_description(NAME)
    wanted = weights(list(repo.files))
    hub.status = 500
    with pytest.raises(ModelError, match=rf"Cannot get {wanted[1]} and 1 more of {NAME}@{repo.commit} .*status 500"):
        fetch_files(NAME, model.path.name, wanted[1:])


def test_offline_a_model_in_parts_is_known_as_a_whole_once_the_hub_was_asked(
    hub: HubServer, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = missing_weights(resolve_description(NAME))
    facts = find_facts(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert missing_weights(resolve_description(NAME)) == missing
    assert find_facts(NAME) == facts
    assert hub.requests == []


def test_what_was_kept_about_a_model_and_is_damaged_is_asked_again(hub: HubServer, repo: Repo) -> None:
    model = resolve_description(NAME)
    missing = missing_weights(model)
    (kept,) = (cache_dir() / "hub").iterdir()
    kept.write_text(kept.read_text()[:-40])
    assert missing_weights(model) == missing
    hub.status = 500
    assert missing_weights(model) == missing


def test_files_that_no_machine_has_are_named_with_who_needs_them() -> None:
    files = {name: SharedFile(name, 1) for name in ("a", "b", "c")}
    needs = {"rank 0 here": [files["a"], files["b"]], "rank 1 on mini": [files["b"], files["c"]]}
    somewhere = [FileSource("10.0.0.2:50150", frozenset("a"))]
    assert nobody_has(needs, frozenset("ab"), somewhere) == "b (for rank 0 here and rank 1 on mini)"
    assert nobody_has(needs, frozenset("a"), somewhere) == ""
