"""Whatever becomes of a grammar's process, its own request hears why and nobody else notices."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from chorus.config.grammar import TOGETHER, GrammarLimits
from chorus.messages.grammar import Grammar, GrammarError, GrammarPart, TooManyGrammars
from chorus.telemetry import journal, telling
from chorus.telemetry.events import Event
from chorus.text.grammar import client
from chorus.text.grammar.client import Constraint
from chorus.text.grammar.nursery import Nursery
from tests.support.fake_mac import FakeMac
from tests.support.freeze import freeze
from tests.support.grammars import DEADLINE, GrammarHost
from tests.text.grammar.conftest import STOPS, VOCABULARY

FIELD = "guided_regex"
LETTERS = Grammar("regex", "a{1,400}", origins=(GrammarPart(FIELD, "regex", "a{1,400}"),))
GROWING = Grammar("json_schema", '{"type": "integer", "multipleOf": 6000011}')
LARGE = Grammar("json_schema", '{"type": "integer", "multipleOf": 50021}')


@pytest.fixture
def own(model: Path) -> Iterator[GrammarHost]:
    """For tests that do harm to its processes; those that come to no harm have all the time they need."""
    with GrammarHost(model, VOCABULARY, GrammarLimits(mask_seconds=DEADLINE), most=3) as host:
        yield host


@pytest.fixture
def letter(model: Path) -> int:
    from tokenizers import Tokenizer

    return int(Tokenizer.from_file(str(model / "tokenizer.json")).token_to_id("a"))


def children(host: GrammarHost) -> set[psutil.Process]:
    return set(psutil.Process(host.pid).children())


def born(host: GrammarHost, grammar: Grammar = LETTERS) -> tuple[Constraint, psutil.Process]:
    before = children(host)
    constraint = host.open(grammar, STOPS)
    (child,) = children(host) - before
    return constraint, child


def follow(constraint: Constraint, token: int) -> None:
    constraint.advance(token)
    constraint.mask(time.monotonic())


def gone(*processes: psutil.Process) -> bool:
    return not psutil.wait_procs(processes, timeout=DEADLINE)[1]


@pytest.fixture
def journalled(tmp_path: Path) -> Iterator[Callable[[], list[Event]]]:
    """What this process has told so far, as a leader does."""
    telling.begin(telling.Place(tmp_path / "events", model="tiny"))

    def told() -> list[Event]:
        telling.end()
        return journal.read(tmp_path / "events")

    yield told
    telling.end()


def test_a_process_that_is_ended_for_its_limits_is_in_the_journal_and_a_wrong_grammar_is_not(
    model: Path, letter: int, journalled: Callable[[], list[Event]]
) -> None:
    with GrammarHost(
        model, VOCABULARY, GrammarLimits(memory_mb=24, compile_seconds=DEADLINE, mask_seconds=0.3)
    ) as host:
        for wrong in (Grammar("regex", "(("), Grammar("json_schema", '{"type": "nothing"}')):
            with pytest.raises(GrammarError):
                host.open(wrong, STOPS)
        host.open(LETTERS, STOPS).close()
        with pytest.raises(GrammarError):
            host.open(GROWING, STOPS)
        constraint, child = born(host)
        freeze(child)
        with pytest.raises(GrammarError):
            follow(constraint, letter)
        constraint.close()
    first, more = journalled()
    assert (first.kind, first.level, first.model) == ("grammar_ended", "warning", "tiny")
    assert first.text.startswith("tiny: the process of a request's grammar was ended: it needs more than 24 MB")
    assert "6000011" not in first.text
    assert "grammar_mask_seconds" in more.text
    assert more.text.endswith("(1 more like it)")


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGSEGV, "nested too deeply"), (signal.SIGABRT, "grammar_memory_mb"), (signal.SIGKILL, "ended")],
)
def test_a_process_that_ends_fails_its_own_request(
    own: GrammarHost, letter: int, number: signal.Signals, reason: str
) -> None:
    (first, child), (second, _) = born(own), born(own)
    child.send_signal(number)
    assert gone(child)
    with pytest.raises(GrammarError, match=reason) as caught:
        follow(first, letter)
    assert caught.value.field == FIELD
    follow(second, letter)
    for constraint in (first, second):
        constraint.close()


def test_a_process_that_stands_still_is_given_up_and_ended(model: Path, letter: int) -> None:
    with GrammarHost(model, VOCABULARY, GrammarLimits(mask_seconds=0.3)) as host:
        constraint, child = born(host)
        freeze(child)
        with pytest.raises(GrammarError, match="grammar_mask_seconds"):
            follow(constraint, letter)
        constraint.close()
        assert gone(child)


def test_a_process_ends_with_its_request(own: GrammarHost) -> None:
    constraint, child = born(own)
    constraint.close()
    assert gone(child)


def test_what_takes_too_much_memory_or_time_says_so(model: Path) -> None:
    for limits, reason in (
        (GrammarLimits(memory_mb=24, compile_seconds=DEADLINE), "needs more than 24 MB"),
        (GrammarLimits(memory_mb=4096, compile_seconds=3.0), "not compiled after 3 s"),
    ):
        with GrammarHost(model, VOCABULARY, limits) as host:
            with pytest.raises(GrammarError, match=reason):
                host.open(GROWING, STOPS)
            host.open(LETTERS, STOPS).close()


def test_a_mac_sets_no_limit_so_the_nursery_looks_at_the_memory_of_its_children(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", FakeMac(tmp_path / "mac").environment()["PYTHONPATH"])
    with GrammarHost(model, VOCABULARY, GrammarLimits(memory_mb=24, compile_seconds=DEADLINE)) as host:
        with pytest.raises(GrammarError, match="needs more than 24 MB"):
            host.open(GROWING, STOPS)
        constraint, child = born(host)
        assert child.rlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
        constraint.close()
        assert gone(child)


def test_a_hang_up_is_asked_for_since_macos_tells_of_no_other(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Poll:
        def register(self, what: object, events: int) -> None:
            asked.append(events)

    monkeypatch.setattr(select, "poll", Poll)
    for name in ("signal", "set_wakeup_fd"):
        monkeypatch.setattr(signal, name, lambda *_, **__: None)
    monkeypatch.setattr(os, "fork", os.getpid)
    control, link = socket.socketpair()
    with control, link:
        nursery = Nursery(control, None, GrammarLimits())  # type: ignore[arg-type]
        nursery._fork(link, -1, None)  # type: ignore[arg-type]
    assert all(asked)


def test_all_grammars_together_have_a_limit_too(model: Path, letter: int) -> None:
    """Each is within its own, but when the sum is too much the largest goes."""
    with GrammarHost(model, VOCABULARY, GrammarLimits(memory_mb=32, compile_seconds=DEADLINE)) as host:
        held: list[Constraint] = []
        reasons: list[str] = []
        while not reasons and len(held) < 20 and len(children(host)) == len(held):
            try:
                held.append(host.open(LARGE, STOPS))
            except GrammarError as error:
                # It was itself the largest, while it compiled.
                reasons.append(str(error))
        reasons += [reason_of(constraint, letter) for constraint in held]
        assert len([reason for reason in reasons if f"{TOGETHER * 32} MB together" in reason]) == 1
        for constraint in held:
            constraint.close()


def reason_of(constraint: Constraint, token: int) -> str:
    try:
        follow(constraint, token)
    except GrammarError as error:
        return str(error)
    return ""


def test_when_the_parent_of_all_is_gone_another_one_takes_its_place(own: GrammarHost, letter: int) -> None:
    constraint, child = born(own)
    first = psutil.Process(own.pid)
    first.kill()
    assert gone(first, child)
    with pytest.raises(GrammarError, match="ended"):
        follow(constraint, letter)
    constraint.close()
    again = own.open(LETTERS, STOPS)
    follow(again, letter)
    again.close()
    assert own.pid != first.pid


def test_a_parent_that_does_not_answer_is_replaced(own: GrammarHost, monkeypatch: pytest.MonkeyPatch) -> None:
    freeze(psutil.Process(own.pid))
    monkeypatch.setattr(client, "ANSWER_SECONDS", -4.0)
    with pytest.raises(GrammarError, match="does not answer"):
        own.open(LETTERS, STOPS)
    monkeypatch.undo()
    own.open(LETTERS, STOPS).close()


def test_only_so_many_are_open_at_a_time(own: GrammarHost) -> None:
    held = [own.open(LETTERS, STOPS) for _ in range(3)]
    with pytest.raises(TooManyGrammars, match="3 requests"):
        own.open(LETTERS, STOPS)
    held.pop().close()
    held.append(own.open(LETTERS, STOPS))
    for constraint in held:
        constraint.close()


def test_leaving_while_it_compiles_ends_the_process(own: GrammarHost) -> None:
    task = own.begin(GROWING, STOPS)
    deadline = time.monotonic() + DEADLINE
    while not (born := children(own)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    task.cancel()
    assert gone(*born)


def test_the_wrong_one_of_several_is_named(host: GrammarHost) -> None:
    whole = 'start: "a" | "b"'
    origins = (GrammarPart("tools[0]", "json_schema", "{}"), GrammarPart("tools[1]", "json_schema", '{"type": "blob"}'))
    with pytest.raises(GrammarError, match="blob") as caught:
        host.open(Grammar("lark", whole, origins=origins), STOPS)
    assert caught.value.field == "tools[1]"


def test_what_is_too_long_is_not_even_sent(model: Path) -> None:
    with (
        GrammarHost(model, VOCABULARY, GrammarLimits(max_bytes=100)) as host,
        pytest.raises(GrammarError, match="101 bytes where 100 are accepted"),
    ):
        host.open(Grammar("regex", "a" * 101), STOPS)


LEADER = """
import sys, time
from pathlib import Path
from tests.support.grammars import GrammarHost
from tests.text.grammar.test_contained import GROWING, LETTERS, STOPS, VOCABULARY, children

with GrammarHost(Path(sys.argv[1]), VOCABULARY) as host:
    constraint = host.open(LETTERS, STOPS)
    task = host.begin(GROWING, STOPS)
    while len(children(host)) < 2:
        time.sleep(0.01)
    print(host.pid, *(child.pid for child in children(host)), flush=True)
    time.sleep(600)
"""


def test_all_of_them_end_with_the_leader_however_it_ends(model: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LEADER, str(model)], stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in leader.stdout.readline().split()]
        assert len(processes) == 3
        os.kill(leader.pid, signal.SIGKILL)
    assert gone(*processes)
