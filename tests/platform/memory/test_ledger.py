"""Memory is booked before it is taken: never more than the budget, and never for a process that has ended."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chorus.platform.memory import ledger as module
from chorus.platform.memory.ledger import Ledger, LedgerError, NoRoom, granted, own_file

DEADLINE_SECONDS = 60
GB = 2**30


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


def test_a_booking_takes_its_part_until_it_is_released(file: Path) -> None:
    ledger = Ledger(file, 10 * GB)
    ledger.book("coder", 6 * GB, "qwen")
    assert ledger.free() == 4 * GB
    assert [(booking.owner, booking.amount, booking.pid) for booking in ledger.bookings()] == [
        ("coder", 6 * GB, os.getpid())
    ]
    ledger.release("coder")
    assert ledger.free() == 10 * GB
    assert ledger.bookings() == ()
    ledger.release("coder")


def test_what_does_not_fit_is_refused_with_all_figures_and_leaves_no_trace(file: Path) -> None:
    ledger = Ledger(file, 10 * GB)
    ledger.book("coder", 6 * GB, "qwen")
    with pytest.raises(NoRoom) as refused:
        ledger.book("talker", 5 * GB, "llama")
    told = str(refused.value)
    assert all(part in told for part in ("llama", "5.0 GiB", "4.0 GiB", "10.0 GiB", "qwen (6.0 GiB)", "unload"))
    assert (refused.value.asked, refused.value.free) == (5 * GB, 4 * GB)
    assert [booking.owner for booking in refused.value.others] == ["coder"]
    assert [booking.owner for booking in ledger.bookings()] == ["coder"]


def test_a_model_too_large_for_the_empty_machine_is_told_so(file: Path) -> None:
    with pytest.raises(NoRoom, match=r"needs 5\.0 GiB and 4\.0 GiB are left; this machine has 4\.0 GiB"):
        Ledger(file, 4 * GB).book("coder", 5 * GB, "qwen")


def test_who_insists_is_booked_above_the_budget_and_others_see_it(file: Path) -> None:
    ledger = Ledger(file, 4 * GB)
    ledger.book("coder", 5 * GB, "qwen", force=True)
    assert ledger.free() == 0
    with pytest.raises(NoRoom):
        ledger.book("talker", 1, "llama")


def test_a_booking_can_grow_and_shrink_and_stays_when_it_cannot_grow(file: Path) -> None:
    ledger = Ledger(file, 10)
    ledger.book("coder", 4, "qwen")
    ledger.book("talker", 4, "llama")
    ledger.change("coder", 6)
    with pytest.raises(NoRoom):
        ledger.change("coder", 7)
    assert {booking.owner: booking.amount for booking in ledger.bookings()} == {"coder": 6, "talker": 4}
    ledger.change("coder", 1)
    assert ledger.free() == 5
    with pytest.raises(LedgerError, match="nobody has nothing booked"):
        ledger.change("nobody", 1)


def test_what_is_above_the_budget_may_still_shrink(file: Path) -> None:
    ledger = Ledger(file, 10)
    ledger.book("coder", 20, "qwen", force=True)
    assert ledger.change("coder", 15).amount == 15


def test_booking_again_replaces_what_the_same_owner_had(file: Path) -> None:
    ledger = Ledger(file, 10)
    ledger.book("coder", 8, "qwen")
    ledger.book("coder", 9, "qwen 2")
    assert [(booking.amount, booking.what) for booking in ledger.bookings()] == [(9, "qwen 2")]


def test_the_budget_is_measured_once_and_stands_while_anything_is_booked(file: Path) -> None:
    measured = iter([100, 30, 70])
    ledger, other = Ledger(file, lambda: next(measured)), Ledger(file, 1_000_000)
    ledger.book("coder", 60, "qwen")
    assert other.free() == ledger.free() == 40
    with pytest.raises(NoRoom):
        other.book("talker", 41, "llama")
    ledger.release("coder")
    assert ledger.budget() == 30
    ledger.book("coder", 60, "qwen")
    assert ledger.budget() == 70


@pytest.mark.parametrize(
    ("needs", "free", "more", "amount"),
    [
        (10, 110, True, 60),
        (10, 110, False, 10),
        (10, 5, True, 10),
        (0, 110, True, 110),
        (0, 110, False, 110),
        (0, 0, True, 1),
    ],
)
def test_more_than_is_needed_is_granted_only_in_part(needs: int, free: int, more: bool, amount: int) -> None:
    assert granted(needs, free, more) == amount


@pytest.mark.parametrize(("free", "amount"), [(100, 15), (12, 12), (5, 10)])
def test_who_knows_what_is_enough_is_granted_no_more(free: int, amount: int) -> None:
    assert granted(10, free, True, most=15) == amount


def test_a_grant_leaves_room_for_others_and_gives_what_is_needed_or_nothing(file: Path) -> None:
    ledger = Ledger(file, 100)
    assert ledger.grant("first", 20, "qwen", more=True).amount == 60
    assert ledger.grant("second", 30, "llama", more=False).amount == 30
    assert ledger.grant("third", 10, "phi", more=True).amount == 10
    with pytest.raises(NoRoom):
        ledger.grant("fourth", 1, "gemma", more=True)
    with pytest.raises(NoRoom):
        ledger.grant("fourth", 0, "gemma", more=True)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'"x"',
        b'{"budget": 5}',
        b'{"budget": "5", "bookings": []}',
        b'{"budget": 5, "bookings": [1]}',
        b'{"budget": 5, "bookings": [{"owner": "x"}]}',
        b'{"budget": 5, "bookings": [{"owner": "x", "amount": -1, "what": "y", "pid": 1, "mark": "z"}]}',
        b'{"budget": 5, "bookings": [{"owner": "x", "amount": 1, "what": "y", "pid": true, "mark": "z"}]}',
        b"[" * 100_000,
        b" " * (1 << 20),
    ],
)
def test_a_file_that_is_no_ledger_is_told_once_and_begun_anew(
    file: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_bytes(content)
    ledger = Ledger(file, 10)
    assert ledger.bookings() == ()
    ledger.book("coder", 4, "qwen")
    assert ledger.free() == 6
    assert caplog.text.count("begun anew") == 1


@given(st.binary(max_size=300))
@settings(max_examples=50, deadline=None)
def test_whatever_the_file_holds_a_look_ends_well(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "whatever.json"
    file.write_bytes(content)
    assert Ledger(file, 10).free() == 10


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["book", "change", "release"]), st.sampled_from("abc"), st.integers(0, 70)), max_size=30
)


@given(OPERATIONS)
@settings(max_examples=60, deadline=None)
def test_bookings_never_pass_the_budget_and_are_what_was_granted(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, str, int]]
) -> None:
    file = tmp_path_factory.mktemp("ledger") / "ledger.json"
    granted: dict[str, int] = {}
    for act, owner, amount in operations:
        ledger = Ledger(file, 100)
        others = sum(granted.values()) - granted.get(owner, 0)
        try:
            if act == "release":
                ledger.release(owner)
                granted.pop(owner, None)
            elif act == "book":
                ledger.book(owner, amount, owner)
                granted[owner] = amount
            else:
                ledger.change(owner, amount)
                assert owner in granted
                granted[owner] = amount
        except NoRoom:
            assert others + amount > 100
        except LedgerError:
            assert act == "change"
            assert owner not in granted
        assert {booking.owner: booking.amount for booking in ledger.bookings()} == granted
        assert sum(granted.values()) <= 100
        assert ledger.free() == 100 - sum(granted.values())


CROWD = """
    import sys
    from pathlib import Path
    from chorus.platform.memory.ledger import Ledger, NoRoom
    ledger, refused = Ledger(Path(sys.argv[1]), 100), 0
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(40):
        try:
            ledger.book("mine", 30, f"turn {turn}")
        except NoRoom as error:
            refused += 1
            assert sum(b.amount for b in error.others) + 30 > 100
            continue
        held = sum(b.amount for b in ledger.bookings())
        assert 30 <= held <= 100, held
        ledger.release("mine")
    print(refused, flush=True)
"""


def test_many_processes_at_once_never_book_more_than_there_is(file: Path) -> None:
    crowd = [_python(CROWD, file) for _ in range(5)]
    for process in crowd:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in crowd:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [process.communicate(timeout=DEADLINE_SECONDS) for process in crowd]
    assert [process.returncode for process in crowd] == [0] * 5, ends
    assert Ledger(file, 100).bookings() == ()
    assert not [left for left in file.parent.iterdir() if left.name.startswith(".")]


HOLDER = """
    import signal, sys
    from pathlib import Path
    from chorus.platform.memory.ledger import Ledger
    Ledger(Path(sys.argv[1]), 100).book("mine", 80, "qwen")
    print("booked", flush=True)
    signal.pause()
"""


def test_the_booking_of_a_killed_process_counts_for_nothing(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    holder = _python(HOLDER, file)
    assert holder.stdout
    assert holder.stdout.readline() == "booked\n"
    ledger = Ledger(file, 100)
    with pytest.raises(NoRoom):
        ledger.book("coder", 30, "llama")
    # Another process with the same owner's name has a part of its own, and no say in this one.
    ledger.release("mine")
    assert ledger.free() == 20
    os.kill(holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert ledger.free() == 100, "a process that nobody has reaped yet holds no memory"
    holder.wait(DEADLINE_SECONDS)
    assert "whose process is gone: 0.0 of 0.0 MB are booked" in caplog.text
    ledger.book("coder", 100, "llama")


def test_a_later_process_with_the_same_number_does_not_inherit_a_booking(file: Path) -> None:
    Ledger(file, 100).book("coder", 30, "qwen")
    page = json.loads(file.read_text())
    page["bookings"][0]["mark"] = "of another life"
    file.write_text(json.dumps(page))
    assert Ledger(file, 100).bookings() == ()


def test_every_change_is_logged_with_the_sum_and_the_budget(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ledger = Ledger(file, 100_000_000)
    ledger.book("coder", 60_000_000, "qwen")
    ledger.book("talker", 30_000_000, "llama")
    ledger.change("talker", 20_000_000)
    ledger.release("coder")
    sums = re.findall(r": ([\d.]+) of ([\d.]+) MB are booked", caplog.text)
    assert sums == [("60.0", "100.0"), ("90.0", "100.0"), ("80.0", "100.0"), ("20.0", "100.0")]


def test_the_file_stays_small_and_private(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BOOKINGS", 3)
    ledger = Ledger(file, 100)
    for number in range(3):
        ledger.book(f"{number}" * 10_000, 1, "x" * 10_000)
    with pytest.raises(LedgerError, match="3 bookings, the most"):
        ledger.book("one more", 1, "qwen")
    ledger.release("0" * 10_000)
    ledger.book("one more", 1, "qwen")
    assert file.stat().st_size < 3000
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_lock_that_another_keeps_for_ever_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.05)
    with Ledger(file, 100)._page(), pytest.raises(LedgerError, match="locked by another process"):
        Ledger(file, 100).free()


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="CHORUS_STATE"):
        Ledger(tmp_path / "file" / "ledger.json", 100).free()


def test_servers_with_other_state_folders_have_other_ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHORUS_STATE", str(tmp_path / "one"))
    one = own_file()
    monkeypatch.setenv("CHORUS_STATE", str(tmp_path / "other"))
    assert one != own_file()
    assert one.parent == tmp_path / "one"


def _python(code: str, file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
