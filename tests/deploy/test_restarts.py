"""What is started again, when, and for how long: decided without any process, then seen with a few."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from chorus.cluster.agent.ranks import NoPort, Ranks
from chorus.deploy.hostfile.places import Places
from chorus.deploy.supervisor import CannotStartNow, GaveUp, Kept, ProcessGroup, Program, Supervisor
from chorus.messages.proto import rank_pb2
from chorus.platform.memory.ledger import Booking, Ledger, NoRoom
from chorus.platform.process.exits import EXIT_CANNOT_START, EXIT_RANK_LOST
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.output import RotatingLog
from chorus.platform.process.restarts import Life, RestartPolicy, Restarts
from chorus.platform.process.timing import WatchTimes
from tests.support.ports import listening_port

DEADLINE = 60.0
POLICY = RestartPolicy(pauses=(0.0, 0.0, 0.0))


def test_what_never_started_is_not_tried_again() -> None:
    assert Restarts().pause(EXIT_CANNOT_START, 0) is None


def test_what_has_run_is_tried_again_with_growing_pauses_and_then_given_up() -> None:
    restarts = Restarts()
    assert restarts.pause(-9, 0) == 0
    pauses = [restarts.pause(EXIT_CANNOT_START, moment) for moment in range(7)]
    assert pauses == [1, 2, 4, 8, 16, 32, None]


def test_a_port_is_waited_for_longer_than_a_closed_connection_can_keep_it() -> None:
    assert sum(RestartPolicy().pauses) > 60


def test_a_start_that_succeeds_begins_the_count_anew() -> None:
    restarts = Restarts()
    for moment in (0.0, 1000.0, 2000.0):
        assert restarts.pause(EXIT_RANK_LOST, moment, Life(loading=1, served=900)) == 0
        assert [restarts.pause(EXIT_CANNOT_START, moment) for _ in range(3)] == [1, 2, 4]


def test_tries_that_waited_long_are_forgotten_where_asked() -> None:
    restarts = Restarts(RestartPolicy(refused_within_seconds=300))
    restarts.pause(EXIT_RANK_LOST, 0)
    assert {restarts.pause(EXIT_CANNOT_START, 600.0 * n) for n in range(20)} == {1}


def test_what_is_lost_again_and_again_is_started_after_growing_pauses_and_then_given_up() -> None:
    restarts = Restarts()
    assert [restarts.pause(1, moment) for moment in range(8)] == [0, 1, 2, 4, 8, 16, 32, None]


def test_what_takes_minutes_to_load_and_then_ends_is_given_up_too() -> None:
    restarts, life = Restarts(), Life(loading=300, served=90)
    assert [restarts.pause(-11, 390.0 * n, life) for n in range(8)] == [0, 1, 2, 4, 8, 16, 32, None]


def test_what_has_served_longer_than_it_took_to_load_is_lost_anew() -> None:
    restarts = Restarts()
    assert {restarts.pause(-11, 390.0 * n, Life(loading=300, served=301)) for n in range(20)} == {0}
    assert {restarts.pause(-11, 390.0 * n, Life(loading=2, served=61)) for n in range(20)} == {0}


def test_a_token_between_two_losses_makes_the_second_one_the_first() -> None:
    restarts = Restarts()
    assert [restarts.pause(-9, 0, Life(2, 1, delivered=n)) for n in range(1, 20)] == [0] * 19
    assert [restarts.pause(-9, 0, Life(2, 1, delivered=19)) for _ in range(7)] == [1, 2, 4, 8, 16, 32, None]


def test_a_start_that_failed_in_between_delivered_nothing() -> None:
    restarts = Restarts()
    assert restarts.pause(-9, 0, Life(2, 1, delivered=7)) == 0
    assert restarts.pause(EXIT_CANNOT_START, 0) == 1
    assert restarts.pause(-9, 0, Life(2, 1, delivered=7)) == 1


def test_what_is_known_to_have_run_is_tried_again_at_its_first_refusal() -> None:
    assert Restarts(ran=True).pause(EXIT_CANNOT_START, 0) == 1


def test_what_has_served_may_start_again_though_it_could_not_say_so_by_its_exit_code() -> None:
    assert Restarts().pause(EXIT_CANNOT_START, 0, Life(loading=2, served=1)) == 1


def test_a_rank_that_was_only_left_by_its_leader_has_run_and_was_not_lost() -> None:
    restarts = Restarts()
    restarts.has_run()
    assert restarts.pause(EXIT_CANNOT_START, 0) == 1
    restarts.has_run()
    assert restarts.pause(EXIT_CANNOT_START, 0) == 1
    assert restarts.lost == 0


class Scripted(ProcessGroup):
    """Ends, or fails to start, as it is told; then runs for good."""

    def __init__(self, *endings: int | Exception) -> None:
        super().__init__("ranks", [Program("rank 0", ())], Lifeline(), 0)
        self.endings = list(endings)
        self.starts = 0
        self.lasting = asyncio.Event()

    async def start(self) -> None:
        self.starts += 1
        if self.endings and isinstance(self.endings[0], Exception):
            raise self.endings.pop(0)  # type: ignore[misc]

    async def ended(self) -> tuple[str, int]:
        if not self.endings:
            self.lasting.set()
            await asyncio.Event().wait()
        return "rank 0", self.endings.pop(0)  # type: ignore[return-value]


async def supervise(ranks: Scripted) -> None:
    """Until the group lasts, or is given up."""
    supervisor = Supervisor(Kept(ranks, POLICY), Kept(Scripted(), POLICY))
    running = asyncio.create_task(supervisor.run())
    lasting = asyncio.create_task(ranks.lasting.wait())
    async with asyncio.timeout(DEADLINE):
        await asyncio.wait([running, lasting], return_when=asyncio.FIRST_COMPLETED)
        supervisor.stop()
        lasting.cancel()
        await running


def test_a_group_that_served_survives_starts_that_fail() -> None:
    async def act() -> None:
        ranks = Scripted(EXIT_RANK_LOST, CannotStartNow("node one is draining"), EXIT_CANNOT_START)
        await supervise(ranks)
        assert ranks.starts == 4

    asyncio.run(act())


@pytest.mark.parametrize(
    ("endings", "said", "starts"),
    [
        ([EXIT_CANNOT_START], "rank 0 cannot start", 1),
        ([EXIT_RANK_LOST, *[CannotStartNow("node one is draining")] * 4], "node one is draining", 5),
        ([EXIT_RANK_LOST] * 5, "rank 0 ended 5 times in a row, last with exit code 71", 5),
    ],
)
def test_a_group_is_given_up_with_its_reason(endings: list[int | Exception], said: str, starts: int) -> None:
    async def act() -> None:
        ranks = Scripted(*endings)
        with pytest.raises(GaveUp, match=said):
            await supervise(ranks)
        assert ranks.starts == starts

    asyncio.run(act())


def program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """What an agent runs in place of a rank."""
    monkeypatch.setattr("chorus.cluster.agent.ranks.python", lambda *_: [sys.executable, "-c", code])


def ranks_in(folder: Path, ports: Sequence[int] = ()) -> Ranks:
    return Ranks("127.0.0.1", ports, RotatingLog(folder / "node.log"), folder / "ledger.json")


def test_ranks_that_start_at_once_get_different_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, "import signal; signal.pause()")

    async def act() -> None:
        first = listening_port()
        ranks = ranks_in(tmp_path, range(first, first + 8))
        started = await asyncio.gather(*(ranks.start("s", number, "m", [], {}, needs=1) for number in range(3)))
        assert len({rank.port for rank in started}) == 3
        await ranks.close()

    asyncio.run(act())


class SlowLedger(Ledger):
    """Takes as long as the test wants to grant, and to release."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, 100)
        self.asked, self.grants, self.releases = threading.Event(), threading.Event(), threading.Event()
        self.releases.set()
        self.granted, self.released = threading.Event(), threading.Event()

    def grant(self, *words: Any, **more: Any) -> Booking:
        self.asked.set()
        assert self.grants.wait(DEADLINE)
        try:
            return super().grant(*words, **more)
        finally:
            self.granted.set()

    def release(self, owner: str) -> None:
        assert self.releases.wait(DEADLINE)
        super().release(owner)
        self.released.set()


async def leave(asking: asyncio.Task[Any], ledger: SlowLedger) -> None:
    """While the ledger is asked in a thread."""
    assert await asyncio.to_thread(ledger.asked.wait, DEADLINE)
    asking.cancel()
    await asyncio.sleep(0)
    ledger.grants.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asking, DEADLINE)
    assert await asyncio.to_thread(ledger.granted.wait, DEADLINE)
    assert ledger.bookings() == ()


def test_who_leaves_while_its_rank_is_booked_leaves_no_booking(tmp_path: Path) -> None:
    async def act() -> None:
        ranks, ledger = ranks_in(tmp_path), SlowLedger(tmp_path / "ledger.json")
        ranks._ledger = ledger
        await leave(asyncio.create_task(ranks.start("s", 1, "m", [], {}, needs=1)), ledger)
        await ranks.close()

    asyncio.run(act())


def test_a_leader_that_leaves_while_its_place_is_booked_leaves_no_booking(tmp_path: Path) -> None:
    async def act() -> None:
        ledger = SlowLedger(tmp_path / "ledger.json")
        places = Places(1, "127.0.0.1:0", Program("rank", ["false"]), ledger, WatchTimes())
        await leave(asyncio.create_task(places._taken(rank_pb2.PlaceRequest(group="g", model="m", needs=1))), ledger)
        await places.close()

    asyncio.run(act())


def test_the_booking_of_a_rank_outlives_the_release_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(monkeypatch, "import signal; signal.pause()")

    async def act() -> None:
        ranks, ledger = ranks_in(tmp_path), SlowLedger(tmp_path / "ledger.json")
        ranks._ledger = ledger
        ledger.grants.set()
        first = await ranks.start("s", 1, "m", [], {}, needs=1)
        ledger.releases.clear()
        first.process.kill()
        await asyncio.wait_for(first.process.wait(), DEADLINE)
        again = asyncio.create_task(ranks.start("s", 1, "m", [], {}, needs=1))
        await asyncio.sleep(0.1)  # time enough to go wrong
        ledger.releases.set()
        await asyncio.wait_for(again, DEADLINE)
        assert await asyncio.to_thread(ledger.released.wait, DEADLINE)
        assert [booking.owner for booking in ledger.bookings()] == [again.result().booking.owner]
        await ranks.close()
        assert ledger.bookings() == ()

    asyncio.run(act())


def test_a_fixed_port_that_a_rank_has_had_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program(monkeypatch, "pass")

    async def act() -> None:
        port = listening_port()
        ranks = ranks_in(tmp_path)
        with socket.create_server(("127.0.0.1", port)), pytest.raises(NoPort, match=f"port {port} is taken"):
            await ranks.start("s", 1, "m", [], {}, port, needs=1)
        first = await ranks.start("s", 1, "m", [], {}, port, needs=1)
        await asyncio.wait_for(first.ended.wait(), DEADLINE)
        with socket.create_server(("127.0.0.1", port)):
            again = asyncio.create_task(ranks.start("t", 1, "m", [], {}, port, needs=1))
            async with asyncio.timeout(DEADLINE):
                while f"port {port} of this node's rank is taken: trying again" not in caplog.text:
                    await asyncio.sleep(0.01)
        assert (await asyncio.wait_for(again, DEADLINE)).port == port
        await ranks.close()

    asyncio.run(act())


def test_ranks_end_when_their_coordinator_no_longer_says_that_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection may well be open: a coordinator that stands still keeps it."""
    program(monkeypatch, "import time; time.sleep(600)")

    async def act() -> None:
        ranks = ranks_in(tmp_path)
        short = dict.fromkeys(("heartbeat_seconds", "agent_silence_seconds", "abandon_seconds", "lease_seconds"), 1e-9)
        impatient = WatchTimes(**{**short, "heartbeat_seconds": 1e-12})
        await ranks.start("s", 1, "m", [], {}, timing=WatchTimes(lease_seconds=DEADLINE), needs=1)
        await ranks.start("t", 1, "m", [], {}, timing=impatient, needs=1)
        with ranks.watched("s"), ranks.watched("t", impatient) as heard:
            heard()
            await ranks.end_forgotten()
            assert [(state.session, state.running) for state in ranks.states()] == [("s", True)]
        await ranks.close()

    asyncio.run(act())


def test_only_sessions_whose_coordinator_has_left_are_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(monkeypatch, "import time; time.sleep(600)")

    async def act() -> None:
        ranks = ranks_in(tmp_path)
        await asyncio.gather(*(ranks.start(session, 1, "m", [], {}, needs=1) for session in ("left", "watched", "new")))
        with ranks.watched("left"):
            pass
        with ranks.watched("watched"):
            assert await ranks.end_abandoned() == 1
            assert {state.session for state in ranks.states()} == {"watched", "new"}
        await ranks.close()

    asyncio.run(act())


def test_a_rank_is_booked_before_it_starts_and_its_part_comes_back_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(monkeypatch, "import time; time.sleep(600)")

    async def act() -> None:
        ranks = ranks_in(tmp_path)
        assert await ranks.room(1000) == 1000
        first = await ranks.start("one", 1, "qwen", [], {}, needs=600, more=False)
        second = await ranks.start("two", 1, "llama", [], {}, needs=100, more=True)
        assert (first.booking.amount, second.booking.amount) == (600, 250)
        assert (ranks.booked, ranks.unbooked) == (850, 150)
        assert {state.session: state.booked_bytes for state in ranks.states()} == {"one": 600, "two": 250}
        told = [psutil.Process(rank.process.pid).environ()["CHORUS_BOOKED_BYTES"] for rank in (first, second)]
        assert told == ["600", "250"]
        # Whatever is measured now, a plan is told what is not booked.
        assert await ranks.room(777) == 150
        with pytest.raises(NoRoom, match=r"no room for phi: it needs 0 MiB .* booked by qwen \(0 MiB\), llama"):
            await ranks.start("three", 1, "phi", [], {}, needs=151)
        assert {state.session for state in ranks.states()} == {"one", "two"}
        first.process.kill()
        await asyncio.wait_for(first.ended.wait(), DEADLINE)
        assert await ranks.room(777) == 750
        assert await ranks.end("two") == 1
        assert await ranks.room(777) == 777
        assert ranks.booked == 0
        await ranks.close()

    asyncio.run(act())


def test_what_a_plan_was_told_is_there_when_it_is_carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a little less may be free by then: a plan may need all of it."""
    program(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr("chorus.cluster.agent.ranks.usable_here", lambda fraction: 990)

    async def act() -> None:
        ranks = ranks_in(tmp_path)
        assert await ranks.room(1000) == 1000
        assert (await ranks.start("one", 1, "m", [], {}, needs=1000)).booking.amount == 1000
        await ranks.close()

    asyncio.run(act())


def test_a_rank_of_unknown_needs_gets_all_there_is_and_one_that_cannot_start_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr("chorus.cluster.agent.ranks.usable_here", lambda fraction: 990)

    async def act() -> None:
        ranks, port = ranks_in(tmp_path), listening_port()
        with socket.create_server(("127.0.0.1", port)), pytest.raises(NoPort):
            await ranks.start("one", 1, "m", [], {}, port)
        assert (await ranks.start("one", 1, "m", [], {})).booking.amount == 990
        with pytest.raises(NoRoom):
            await ranks.start("two", 1, "m", [], {})
        await ranks.close()

    asyncio.run(act())


def test_a_second_session_on_a_node_with_one_port_gets_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, "import time; time.sleep(600)")

    async def act() -> None:
        ranks, port = ranks_in(tmp_path), listening_port()
        first = await ranks.start("one", 1, "m", [], {}, port, needs=1)
        second = await ranks.start("two", 1, "m", [], {}, port, needs=1)
        assert first.port == port != second.port
        assert [state.running for state in ranks.states()] == [True, True]
        await ranks.close()

    asyncio.run(act())
