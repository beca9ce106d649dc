"""The journal of events: bounded, shared by processes, readable whatever was cut off."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from chorus.telemetry import events, journal
from chorus.telemetry.events import KINDS, Event, Level
from chorus.telemetry.moments import NoMoment, parse_moment
from chorus.telemetry.telling import Place, Teller

NOW = 1_800_000_000.0


def event(number: int, moment: float = NOW, **more: object) -> Event:
    return Event(moment + number, "rank_lost", Level.WARNING, f"event {number}", **more)  # type: ignore[arg-type]


def texts(found: list[Event]) -> list[str]:
    return [each.text for each in found]


def test_what_was_told_is_read_again_as_it_was(tmp_path: Path) -> None:
    told = event(0, server="127.0.0.1:80", model="tiny", node="mini2", rank=3, cause="memory", numbers={"streams": 2})
    assert journal.append(tmp_path / "new", told)
    assert journal.read(tmp_path / "new") == [told]
    assert (tmp_path / "new" / "events.jsonl").stat().st_mode & 0o077 == 0


def test_the_latest_are_read_last_and_only_those_since_a_moment(tmp_path: Path) -> None:
    for number in range(300):
        journal.append(tmp_path, event(number))
    assert texts(journal.read(tmp_path, limit=3)) == ["event 297", "event 298", "event 299"]
    assert texts(journal.read(tmp_path, since=NOW + 298)) == ["event 298", "event 299"]
    assert texts(journal.read(tmp_path, limit=1, wanted=lambda each: each.text.endswith("7"))) == ["event 297"]
    assert journal.read(tmp_path / "nowhere") == []


def test_a_line_from_a_clock_that_was_wrong_hides_nothing_before_it(tmp_path: Path) -> None:
    journal.append(tmp_path, event(1))
    journal.append(tmp_path, event(2, moment=0.0))
    journal.append(tmp_path, event(3))
    assert texts(journal.read(tmp_path, since=NOW)) == ["event 1", "event 3"]


def test_whoever_reads_while_the_files_change_gets_every_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append(tmp_path, event(1))
    journal.newer_file(tmp_path).replace(journal.older_file(tmp_path))
    journal.append(tmp_path, event(2))
    newer, older, opened = journal.newer_file(tmp_path), journal.older_file(tmp_path), Path.open

    def changed(file: Path, *mode: str) -> Any:
        if file == older:
            monkeypatch.setattr(Path, "open", opened)
            newer.replace(older)
            journal.append(tmp_path, event(3))
        return opened(file, *mode)

    monkeypatch.setattr(Path, "open", changed)
    assert texts(journal.read(tmp_path)) == ["event 2", "event 3"]


def test_two_files_of_a_bounded_size_are_kept_whatever_is_told(tmp_path: Path) -> None:
    for number in range(2000):
        journal.append(tmp_path, event(number), most=10_000)
    sizes = [file.stat().st_size for file in tmp_path.glob("*.jsonl")]
    assert len(sizes) == 2
    assert sum(sizes) <= 20_000
    kept = texts(journal.read(tmp_path))
    assert kept == [f"event {number}" for number in range(2000 - len(kept), 2000)]
    assert len(kept) > 60


def write_many(folder: Path, who: int) -> None:
    for number in range(300):
        journal.append(
            folder, Event(NOW, "rank_lost", Level.INFO, f"{who}:{number}:{'x' * (number % 50)}"), most=60_000
        )


def test_processes_that_write_at_once_lose_no_line_and_mix_none(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(tmp_path, who)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    lines = b"".join((tmp_path / name).read_bytes() for name in ("events.1.jsonl", "events.jsonl")).splitlines()
    assert all(Event.read(line) for line in lines if line)
    for who in range(3):
        numbers = [int(text.split(":")[1]) for text in texts(journal.read(tmp_path)) if text.startswith(f"{who}:")]
        assert numbers == list(range(300 - len(numbers), 300))


def test_damaged_lines_are_skipped_and_a_cut_one_takes_no_other_along(tmp_path: Path) -> None:
    journal.append(tmp_path, event(0))
    file = tmp_path / "events.jsonl"
    for damage in (b"\xff\xfe\n", b"{}\n", b"[1]\n", b'{"time": NaN, "kind": "x", "level": "info", "text": ""}\n'):
        file.write_bytes(file.read_bytes() + damage)
    file.write_bytes(file.read_bytes() + b'{"time": 1, "ki')  # the disk was full
    journal.append(tmp_path, event(1))
    assert texts(journal.read(tmp_path)) == ["event 0", "event 1"]
    file.write_bytes(file.read_bytes() + b"z" * 300_000)
    journal.append(tmp_path, event(2))
    assert texts(journal.read(tmp_path)) == ["event 0", "event 1", "event 2"]


def test_where_nothing_can_be_written_nobody_is_held_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert not journal.append(tmp_path / "file" / "events", event(0))
    assert not journal.append(Path("/dev/null/events"), event(0))
    assert not os.path.exists("/dev/full") or not Full(tmp_path).appended


class Full:
    """A journal on a device that is always full."""

    def __init__(self, folder: Path) -> None:
        (folder / "events.jsonl").symlink_to("/dev/full")
        self.appended = journal.append(folder, event(0))


def test_a_tail_sees_what_comes_and_goes_on_over_a_change_of_files(tmp_path: Path) -> None:
    journal.append(tmp_path, event(0), most=500)
    tail = journal.Tail(tmp_path)
    assert tail.new() == []
    seen = []
    for number in range(1, 40):
        journal.append(tmp_path, event(number), most=500)
        if number % 3 == 0:
            seen += tail.new()
    assert texts(seen) == [f"event {number}" for number in range(1, 40)]
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"time": 1, "kind": "a", "level": "info", ')
        file.flush()
        assert tail.new() == []
        file.write(b'"text": "whole"}\n')
    assert texts(tail.new()) == ["whole"]


def test_a_tail_goes_on_after_a_journal_was_emptied(tmp_path: Path) -> None:
    for number in range(3):
        journal.append(tmp_path, event(number))
    tail = journal.Tail(tmp_path)
    journal.newer_file(tmp_path).write_bytes(b"")
    journal.append(tmp_path, event(3))
    assert texts(tail.new()) == ["event 3"]


def test_a_tail_begins_before_there_is_a_file(tmp_path: Path) -> None:
    tail = journal.Tail(tmp_path)
    assert tail.new() == []
    journal.append(tmp_path, event(5))
    assert texts(tail.new()) == ["event 5"]


def test_many_of_what_is_counted_are_told_once_and_then_with_their_number(tmp_path: Path) -> None:
    teller = Teller(Place(tmp_path))
    for number in range(50):
        teller.tell(event(number, model="a"), counted=True)
    teller.tell(event(50, model="b"), counted=True)
    teller.end()
    assert texts(journal.read(tmp_path)) == ["event 0", "event 50", "event 49 (49 more like it)"]
    assert journal.read(tmp_path)[-1].numbers == {"more": 49}


def test_the_number_comes_by_itself_when_a_burst_is_over(tmp_path: Path) -> None:
    teller = Teller(Place(tmp_path), burst_seconds=1.5)
    for number in range(3):
        teller.tell(event(number), counted=True)
    deadline = time.monotonic() + 60
    while len(journal.read(tmp_path)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert texts(journal.read(tmp_path)) == ["event 0", "event 2 (2 more like it)"]
    teller.end()


def test_texts_from_elsewhere_cannot_move_a_terminals_cursor_or_fill_the_disk() -> None:
    told = events.NODE_LOST.happened(node="mini\x1b[2J\n2", why="x" * 5000 + "\u202e")
    assert told.node == "mini [2J 2"
    assert len(told.text) == events.LONGEST_TEXT
    assert told.text.endswith("…")
    assert "\x1b" not in told.text


def test_every_kind_has_a_name_of_its_own_and_a_sentence() -> None:
    assert len(KINDS) == len({kind.sentence for kind in KINDS.values()})
    assert all(name == kind.name and name.islower() for name, kind in KINDS.items())


def test_the_page_lists_every_kind_with_its_level_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \| (info|warning|error) \|", page, re.MULTILINE)
    assert listed == [(kind.name, kind.level.value) for kind in KINDS.values()]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", NOW - 90),
        ("2h", NOW - 7200),
        ("1.5d", NOW - 129600),
        ("1700000000", 1.7e9),
        ("1700000000.5", 1.7e9 + 0.5),
    ],
)
def test_moments_are_read_as_people_write_them(text: str, moment: float) -> None:
    assert parse_moment(text, NOW) == moment


def test_days_and_dates_are_of_this_machines_zone_unless_they_say_another() -> None:
    begun = parse_moment("today", NOW)
    assert 0 <= NOW - begun < 86400
    assert 82800 <= begun - parse_moment("yesterday", NOW) <= 90000
    assert parse_moment("2027-01-15T08:00:00+00:00", NOW) == NOW
    assert parse_moment("2027-01-15T08:00:00Z", NOW) == NOW
    with pytest.raises(NoMoment, match="'last week' is no time: give 90s, 30m, 2h"):
        parse_moment("last week", NOW)
