"""What people read when a command cannot do what they typed: what is wrong, where, and what to do; one line each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chorus.deploy.ssh.cluster import cluster_name
from tests.cli.typed import typed

FILES = {
    "wrong.yaml": "api: {prt: 1}\n",
    "broken.yaml": "model: [\n",
    "here.json": json.dumps({"devices": [{"device_id": "mini1", "hostname": "localhost"}]}),
    "nodevices.yaml": "model: smollm2-135m\n",
    "noise": "\udcff",
}
OF_A_FILE = ("status", "test", "cache", "up", "down", "restart", "restart --front-end", "logs", "replan", "drain mini1")
NEVER = "mini1: nothing was ever started there: run `chorus up` first"


@pytest.fixture(autouse=True)
def at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    for name, text in FILES.items():
        (folder / name).write_text(text, errors="surrogateescape")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *((f"{command} -c nope.yaml", "nope.yaml: cannot be read: No such file") for command in OF_A_FILE),
        *((f"{command} -c wrong.yaml", "did you mean api.port?") for command in OF_A_FILE),
        ("status -c broken.yaml", "broken.yaml: line 2, column 1: no YAML or JSON here"),
        *((f"{command} -c nodevices.yaml", "with -c FILE") for command in ("up", "down", "status", "logs")),
        *((command, "no devices are given: name the file") for command in ("up", "down", "restart")),
        *((f"{command} -c here.json", NEVER) for command in ("test", "cache", "replan", "drain mini1")),
        ("restart --front-end -c here.json", NEVER),
        ("logs mini3 -c here.json", "no device mini3, did you mean mini1?"),
        ("logs -c here.json", "mini1: there is no log at ~/.chorus/here-"),
        ("restart --port 8100", "--port goes with --front-end"),
        ("drain mini1:x", "expected a port from 1 to 65535 after the colon, got 'mini1:x'"),
        ("join --device-id mini9 -c here.json", "no device mini9, did you mean mini1?"),
        ("join", "give the token, chorus join --token-file FILE"),
        ("join --token-file nope", "cannot read the token from nope: No such file or directory: `chorus token show`"),
        ("join --token-file noise", "noise holds no token: `chorus token show` on the first machine prints it"),
        ("token show", "run `chorus token new` first"),
        ("keys rm anna", "`chorus keys list` names those that there are"),
        ("keys new a/b", "'a/b' cannot name a key: use letters, digits, dot, dash and underscore, up to 64"),
        ("keys list --file nope.json", "there is no key file nope.json"),
        ("doctor --parity smollm2-135m --split 10,x", "--split 10,x: expected numbers of layers"),
    ],
)
def test_what_fails_is_one_line_that_says_what_to_do(line: str, said: str) -> None:
    shown = typed(line)
    assert shown.exit_code == 1, shown.output
    assert shown.stdout == ""
    (told,) = shown.stderr.strip().splitlines()
    assert told.startswith("error: ")
    assert said in told


def test_a_cluster_that_does_not_run_is_a_row_with_its_remedy_and_no_success() -> None:
    shown = typed("status -c here.json")
    assert shown.exit_code == 1
    assert "nothing was ever started there: run `chorus up` first" in shown.stdout


def test_down_ends_the_others_where_one_host_cannot_be_reached(folder: Path) -> None:
    far = {"device_id": "far", "hostname": "far.invalid"}
    near = {"device_id": "near", "hostname": "localhost"}
    (folder / "two.json").write_text(json.dumps({"devices": [far, near]}))
    shown = typed("down -c two.json")
    assert shown.exit_code == 1
    assert shown.stdout == "near: nothing was running\n"
    (told,) = (line for line in shown.stderr.splitlines() if line.startswith("error: "))
    assert told.startswith("error: far: far.invalid: ")


def test_what_a_command_on_the_first_host_fails_with_is_said_once(folder: Path) -> None:
    """It was printed as if it were the answer, and then again as the error."""
    home = folder / ".chorus" / cluster_name(folder / "here.json") / "mini1"
    (home / "app").mkdir(parents=True)
    (home / "app" / "current").write_text("0")
    python = home / "stand-in"
    python.write_text("#!/bin/sh\necho working\necho 'error: it is too hot: open a window'\nexit 1\n")
    python.chmod(0o755)
    (home / "python").write_text(str(python))
    shown = typed("cache -c here.json")
    assert shown.exit_code == 1
    assert shown.stdout == "working\n"
    assert shown.stderr == "error: mini1: it is too hot: open a window\n"


def test_up_where_others_reach_the_api_asks_for_a_key_before_it_starts_anything() -> None:
    result = typed("up -c here.json --host 0.0.0.0")
    assert result.exit_code == 1
    assert "error: mini1: 0.0.0.0 can be reached from other machines and no API key is set" in result.output
    assert "mini1: nothing was running" in typed("down -c here.json").output
