"""Holds one session: a server, its clients and one fault after the other, and what is wrong afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree

import psutil

from chorus.platform.faults import FRONT_END
from tests.chaos.asking import CLIENTS, Asker, Exchange
from tests.chaos.links import Linked
from tests.chaos.localai import LocalAI
from tests.chaos.measure import Suffered, longest_gap, lost
from tests.chaos.plan import BORNE, CLUSTER, COORDINATOR, HTTP, LOCALAI, PlannedFault, Session
from tests.chaos.served import END_SECONDS, FaultMissing, Served, eventually, is_free

RECOVERY_SECONDS = 120.0
"""By then whoever was open at a fault has an end, and somebody has seen something of an answer."""
LOOK_SECONDS = 0.02
SHOWN = 3
MOST_WRONG = 3
"""A server to which so many faults did harm has had its verdict; each of the others could take minutes more."""
GROWTH_BYTES, GROWTH_FILES = 40 << 20, 4


@dataclass
class Held:
    """What came of a session."""

    session: Session
    notes: Path
    """Of its front ends, and its log."""
    suffered: list[Suffered] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


KINDS: dict[str, type[Served]] = {HTTP: Served, LOCALAI: LocalAI, CLUSTER: Linked}


async def hold(session: Session, model: Path | str, seed: str, kept: Path) -> Held:
    """`kept` is where the notes and the log of the server are found afterwards."""
    held = Held(session, kept / session.group.name.replace("/", "-"))
    with KINDS[session.group.served](session.group, model) as served:
        try:
            await _hold(served, held, seed)
        finally:
            copytree(served.folder.notes, held.notes)
            for log in (served.folder.path / "cwd").glob("*.log"):
                (held.notes / log.name).write_bytes(log.read_bytes())
    return held


async def _hold(served: Served, held: Held, seed: str) -> None:
    asker = served.asker(f"{seed} {served.group.name}")
    held.exchanges = asker.exchanges
    sizes: Sizes = {}
    async with _clients(asker):
        for number, fault in enumerate(held.session.faults):
            if len(held.problems) + sum(1 for one in held.suffered if one.problems) >= MOST_WRONG:
                held.problems.append(f"the last {len(held.session.faults) - number} faults were spared it")
                break
            await _until(lambda: sum(1 for exchange in asker.open() if exchange.times) >= CLIENTS / 2, RECOVERY_SECONDS)
            try:
                one = await _suffer(served, asker, fault)
            except (FaultMissing, psutil.Error) as error:
                held.problems.append(f"{fault.name}: {error}")
                print(f"  {fault.name}: {error}", flush=True)
                continue
            await _asked_again(asker, fault, one)
            held.suffered.append(one)
            print(f"  {_told(one)}", flush=True)
            if number == 1 and held.session.group.served == HTTP:
                sizes = _sizes(served)
    if held.suffered and held.suffered[-1].fault.kind == COORDINATOR:
        held.problems += await _begin_again(served, asker)
    else:
        held.problems += _some([f"after all, {_lost_why(exchange)}" for exchange in _counted(asker.exchanges)])
    if sizes:
        held.problems += _grown(sizes, _sizes(served))
    await asker.close()
    held.problems += await asyncio.to_thread(_left_after_stop, served)


@contextlib.asynccontextmanager
async def _clients(asker: Asker) -> AsyncIterator[None]:
    """Six at a time; leaving the block waits for the answers that are under way."""
    tasks = [asyncio.create_task(asker.run()) for _ in range(CLIENTS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while asker.open():
            await asyncio.sleep(LOOK_SECONDS)


async def _suffer(served: Served, asker: Asker, fault: PlannedFault) -> Suffered:
    moment = await asyncio.to_thread(served.suffer, fault)
    last = time.time()
    one = Suffered(served.group, fault, moment)
    concerned = [exchange for exchange in asker.exchanges if not exchange.ended or exchange.ended >= moment]
    if fault.kind == COORDINATOR:
        await _until(lambda: all(exchange.ended for exchange in concerned), RECOVERY_SECONDS)
        one.lost = len(_counted(concerned))
        return one
    if fault.kind not in BORNE and not await _until(lambda: _noticed(served, moment, one), RECOVERY_SECONDS):
        one.problems.append("nobody noticed it")
    since = one.noticed or moment
    if not await _until(lambda: _recovered(asker, concerned, max(since, last)), RECOVERY_SECONDS):
        one.problems.append(f"no recovery within {RECOVERY_SECONDS:g} s")
    concerned = [exchange for exchange in asker.exchanges if not exchange.ended or exchange.ended >= moment]
    one.gap = longest_gap(concerned, since, time.time())
    gone = _counted(concerned)
    one.lost = len(gone)
    one.problems += _some(
        [_lost_why(exchange) for exchange in gone if not _may_be_lost(fault, exchange, max(since, last))]
    )
    return one


def _counted(exchanges: list[Exchange]) -> list[Exchange]:
    """Those that were lost, each for one fault only."""
    gone = [exchange for exchange in lost(exchanges) if not exchange.counted]
    for exchange in gone:
        exchange.counted = True
    return gone


def _some(problems: list[str]) -> list[str]:
    """One cause has many: the first ones say it."""
    more = len(problems) - SHOWN
    return problems if more <= 0 else [*problems[:SHOWN], f"and {more} more"]


def _noticed(served: Served, moment: float, one: Suffered) -> bool:
    one.noticed = served.noticed(moment)
    return one.noticed is not None


def _recovered(asker: Asker, concerned: list[Exchange], since: float) -> bool:
    """Somebody who came later is being answered, and whoever was open has an end or has seen something since then."""
    firsts = [(exchange.times or [exchange.ended])[0] for exchange in asker.exchanges if _later(exchange, since)]
    served = min(firsts, default=math.inf)
    return all(exchange.ended or max(exchange.times, default=0.0) >= served for exchange in concerned) and bool(firsts)


def _later(exchange: Exchange, since: float) -> bool:
    return exchange.began >= since and (bool(exchange.times) or exchange.complete)


def _may_be_lost(fault: PlannedFault, exchange: Exchange, until: float) -> bool:
    """The connections of a front end end with it; those that only wait for the next one do not."""
    went_along = FRONT_END in fault.victims and fault.kind not in BORNE and exchange.began <= until
    return went_along and bool(exchange.broken) and not exchange.hangs


def _lost_why(exchange: Exchange) -> str:
    seen = f"after {len(exchange.times)} pieces" if exchange.times else "before anything came"
    return f"{exchange.id} ({exchange.kind}) was lost {seen}: {exchange.error or exchange.broken}"


async def _asked_again(asker: Asker, fault: PlannedFault, one: Suffered) -> None:
    """What a lost front end took along gets its answer from the next one."""
    if FRONT_END not in fault.victims:
        return
    gone = [exchange for exchange in lost(asker.exchanges) if exchange.ended >= one.at and not exchange.again]
    for again in await asyncio.gather(*map(asker.ask_again, gone)):
        if not again.complete:
            one.problems.append(f"asked again, {_lost_why(again)}")


async def _begin_again(served: Served, asker: Asker) -> list[str]:
    """After the supervisor was killed everything has ended, and the next start is clean."""
    if not await asyncio.to_thread(eventually, lambda: not served.folder.processes(), END_SECONDS):
        return [f"after the kill of the supervisor: {left}" for left in served.folder.left()]
    await asyncio.to_thread(served.restart)
    another = served.asker("begun again", len(asker.exchanges) + 1)
    await asyncio.gather(*(another.ask(another.draw()) for _ in range(CLIENTS)))
    await another.close()
    return [f"after a new start, {_lost_why(exchange)}" for exchange in lost(another.exchanges)]


Sizes = dict[psutil.Process, tuple[int, int]]


def _sizes(served: Served) -> Sizes:
    """Resident bytes and open files of the supervisor and of the front end."""
    processes = [psutil.Process(served.server.process.pid), served.process(FRONT_END)]
    return {process: (process.memory_info().rss, process.num_fds()) for process in processes}


def _grown(before: Sizes, after: Sizes) -> Iterator[str]:
    """Of those that are still the same."""
    for process in before.keys() & after.keys():
        size, files = (now - then for then, now in zip(before[process], after[process], strict=True))
        if size > GROWTH_BYTES:
            yield f"process {process.pid} grew by {size >> 20} MB"
        if files > GROWTH_FILES:
            yield f"process {process.pid} has {files} more files open"


def _left_after_stop(served: Served) -> list[str]:
    ports = served.ports()
    try:
        served.stop()
    except AssertionError as error:
        return [str(error)[:2000]]
    eventually(lambda: not list(served.folder.left()), END_SECONDS)
    return [f"left: {left}" for left in served.folder.left()] + [
        f"left: somebody listens on port {port}" for port in sorted(ports) if not is_free(port)
    ]


async def _until(check: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True


def _told(one: Suffered) -> str:
    seen = "not noticed" if one.detection is None else f"seen after {one.detection:.2f} s"
    gap = "" if one.gap is None else f", gap {one.gap:.2f} s"
    problems = "".join(f"\n    {problem}" for problem in one.problems)
    return f"{one.fault.name}: {seen}{gap}, {one.lost} lost{problems}"
