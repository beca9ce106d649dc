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


def test_a_key_is_for_using_models_unless_admin_is_asked_for(file: Path) -> None:
    plain = CliRunner().invoke(app, ["new", "plain"])
    assert "It may use every model; to load, unload and pull models, clear caches and cancel" in unwrapped(plain.stderr)
    limited = CliRunner().invoke(app, ["new", "limited", "--model", "coder", "--model", "org/small"])
    assert "It may use coder, org/small; to load" in unwrapped(limited.stderr)
    admin = CliRunner().invoke(app, ["new", "operator", "--admin"])
    told = unwrapped(admin.stderr)
    assert "It may use every model and, as admin, load, unload and pull models, clear caches and cancel" in told
    made = json.loads(run("new", "both", "--admin", "--model", "coder", "--json"))
    assert (made["scopes"], made["models"]) == (["admin"], ["coder"])
    rights = {key.id: (key.scopes, key.may_admin, key.models) for key in load_keys(file)}
    assert rights == {
        "plain": (("use",), False, None),
        "limited": (("use",), False, ("coder", "org/small")),
        "operator": (("admin",), True, None),
        "both": (("admin",), True, ("coder",)),
    }
    listed = {entry["id"]: (entry["scopes"], entry["models"]) for entry in json.loads(run("list", "--json"))}
    assert listed["limited"] == (["use"], ["coder", "org/small"])
    table = CliRunner().invoke(app, ["list"], env={"COLUMNS": "200"}).stderr
    rows = [[cell.strip() for cell in line.split("│")[1:4]] for line in table.splitlines() if "│" in line]
    assert rows == [
        ["plain", "use", "all"],
        ["limited", "use", "coder, org/small"],
        ["operator", "admin", "all"],
        ["both", "admin", "coder"],
    ]


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_a_key_from_before_there_were_scopes_is_admin_and_stays_so(file: Path) -> None:
    file.parent.mkdir()
    file.write_text(json.dumps({"keys": [{"id": "old", "sha256": "0" * 64}]}))
    assert [key.may_admin for key in load_keys(file)] == [True]
    run("new", "plain")
    assert [(key.id, key.may_admin, key.models) for key in load_keys(file)] == [
        ("old", True, None),
        ("plain", False, None),
    ]


@pytest.mark.parametrize("wrong", [{"scopes": []}, {"scopes": ["root"]}, {"models": []}, {"models": [""]}])
def test_rights_that_say_nothing_or_the_unknown_are_refused(file: Path, wrong: dict[str, list[str]]) -> None:
    file.parent.mkdir()
    file.write_text(json.dumps({"keys": [{"id": "x", "sha256": "0" * 64, **wrong}]}))
    with pytest.raises(KeyFileError, match=next(iter(wrong))):
        load_keys(file)


@pytest.mark.parametrize("arguments", [("new", "taken"), ("rm", "nobody"), ("new", "a b"), ("new", "x", "--model", "")])
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
