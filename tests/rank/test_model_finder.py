"""Which model a rank loads for a leader that anybody could be: one that its owner named, or one of its store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chorus.messages.load import LoadRequest
from chorus.models.headers import read_headers
from chorus.rank.model_finder import model_finder
from tests.support.tiny_model import write_store_entry, write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("leader") / "tiny", num_hidden_layers=2)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHORUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def asked(model: Path, name: str = "tiny", **more: object) -> LoadRequest:
    headers = read_headers(model).packed()
    return LoadRequest(model_path=str(model), model=name, headers=headers, **more)  # type: ignore[arg-type]


def find(request: LoadRequest, *own: Path) -> Path:
    return model_finder(None, True, False, own)(LoadRequest.from_wire(request.to_wire()))


def test_a_folder_that_the_owner_named_is_used_whatever_its_name(model: Path, store: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", num_hidden_layers=3)
    mine = tmp_path / "called-otherwise"
    shutil.copytree(model, mine)
    assert find(asked(model), other, mine) == mine
    assert find(asked(model, "/leaders/own/path"), mine) == mine


def test_the_store_is_used_by_name_and_checked(model: Path, store: Path, tmp_path: Path) -> None:
    write_store_entry(store, "tiny", model)
    assert find(asked(model)) == store / "models" / "tiny"
    other = write_tiny_model(tmp_path / "other", num_hidden_layers=3)
    with pytest.raises(ValueError, match="tiny in this machine's store is another model than rank 0's: "):
        find(asked(other))


def test_another_model_is_told_with_what_differs(model: Path, store: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "mine", num_hidden_layers=3)
    differs = r"mine here is another model than rank 0's tiny: config\.json has num_hidden_layers 3 here and 2 there"
    with pytest.raises(ValueError, match=differs):
        find(asked(model), other)


def test_a_path_of_the_leaders_is_never_read(model: Path, store: Path) -> None:
    """It is there on this machine too, and was not named by its owner."""
    for name in ("tiny", str(model)):
        with pytest.raises(ValueError, match="start it with --model FOLDER, or run `chorus models import FOLDER"):
            find(asked(model, name))


def test_a_leader_that_says_nothing_of_its_model_gets_what_the_store_has_by_that_name(model: Path, store: Path) -> None:
    with pytest.raises(ValueError, match="was not started with it"):
        find(LoadRequest(model="tiny"), model)
    write_store_entry(store, "tiny", model)
    assert find(LoadRequest(model="tiny")) == store / "models" / "tiny"


def test_code_of_a_model_runs_only_where_the_owner_said_so(model: Path, store: Path) -> None:
    with pytest.raises(ValueError, match="--trust-remote-code"):
        find(asked(model, trust_remote_code=True), model)
