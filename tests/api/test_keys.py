from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chorus.api.auth import find_key
from chorus.cli.keys import app
from chorus.security.key_file import KeyFileError, default_key_file, load_keys


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    chosen = tmp_path / "config" / "keys.json"
    monkeypatch.setenv("CHORUS_KEYS_FILE", str(chosen))
    assert default_key_file() == chosen
    return chosen


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_new_key_is_shown_once_and_kept_as_a_hash(file: Path) -> None:
    key = run("new", "laptop", "--requests-per-minute", "60").strip()
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (entry,) = load_keys(file)
    assert (entry.id, entry.requests_per_minute, entry.max_concurrent) == ("laptop", 60, None)
    assert find_key([entry], key) == entry


def test_keys_are_listed_by_name_and_removed(file: Path) -> None:
    first = json.loads(run("new", "one", "--json"))["key"]
    run("new", "two")
    listed = run("list", "--json")
    assert [entry["id"] for entry in json.loads(listed)] == ["one", "two"]
    assert "sha256" not in listed
    run("rm", "one")
    assert find_key(load_keys(file), first) is None
    assert [key.id for key in load_keys(file)] == ["two"]


@pytest.mark.parametrize("arguments", [("new", "taken"), ("rm", "nobody"), ("new", "a b")])
def test_what_cannot_be_done_is_one_clear_line(file: Path, arguments: tuple[str, ...]) -> None:
    run("new", "taken")
    before = file.read_text()
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 1
    assert file.read_text() == before


def test_a_damaged_file_is_named(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('{"keys": [{"id": "x"}]}')
    with pytest.raises(KeyFileError, match="sha256"):
        load_keys(file)


def test_no_file_means_no_keys(file: Path) -> None:
    assert load_keys(file) == ()
