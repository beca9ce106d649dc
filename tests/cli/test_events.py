"""`chorus events` reads the journal on disk, whether anything runs or not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chorus.platform.storage.paths import state_dir
from chorus.telemetry import journal
from chorus.telemetry.events import Event, Level
from tests.cli.typed import one_line, typed

NOON = 1_800_000_000.0


def happened(text: str, moment: float = NOON, kind: str = "rank_lost", model: str = "tiny", port: int = 8100) -> None:
    event = Event(moment, kind, Level.WARNING, text, f"127.0.0.1:{port}", model, rank=1)
    assert journal.append(journal.folder_in(state_dir()), event)


@pytest.fixture
def written(folder: Path) -> Path:
    happened("first", NOON)
    happened("second", NOON + 60, "node_lost", "other", 8200)
    happened("third", NOON + 120)
    return folder


def texts(line: str) -> list[str]:
    return [event["text"] for event in json.loads(typed(line).stdout)]


def test_a_line_tells_when_how_grave_and_what_without_colours(written: Path) -> None:
    shown = typed("events").stdout.splitlines()
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(NOON))
    assert shown[0] == f"{clock}  WARNING  rank_lost         first"
    assert [line.split()[-1] for line in shown] == ["first", "second", "third"]


def test_what_is_not_asked_for_is_left_out(written: Path) -> None:
    assert texts("events --json") == ["first", "second", "third"]
    assert texts("events --json --model tiny") == ["first", "third"]
    assert texts("events --json --kind node_lost") == ["second"]
    assert texts("events --json --port 8200") == ["second"]
    assert texts(f"events --json --since {NOON + 60:.0f}") == ["second", "third"]
    assert texts("events --json -n 1") == ["third"]
    assert texts("events --json -n 0") == []


def test_what_is_wrong_is_said_in_one_line(written: Path) -> None:
    assert "'never' is no time: give 90s, 30m" in one_line(typed("events --since never"))
    assert "there is no kind of event 'lost'; there are: front_end_lost," in one_line(typed("events --kind lost"))


def test_where_nothing_was_written_that_is_said(folder: Path) -> None:
    result = typed("events")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith(f"nothing was written of it in {state_dir()}")


def test_who_follows_hears_of_what_happens_in_other_processes(written: Path) -> None:
    command = [sys.executable, "-c", "from chorus.cli import main; main()", "events", "-f", "--json", "--model", "tiny"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert [json.loads(process.stdout.readline())["text"] for _ in range(2)] == ["first", "third"]
        happened("of another", time.time(), model="other")
        happened("fourth", time.time())
        assert json.loads(process.stdout.readline())["text"] == "fourth"
        process.terminate()
