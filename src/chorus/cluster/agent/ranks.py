"""The rank processes of one node: started, watched and ended by its agent, and never outliving it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chorus.cluster.logs import pump
from chorus.cluster.profile.machine import usable_here
from chorus.errors import ChorusError
from chorus.messages.proto import agent_pb2 as wire
from chorus.platform.awake import Awake
from chorus.platform.memory.amounts import booked_environment
from chorus.platform.memory.ledger import Booking, Ledger, LedgerError
from chorus.platform.network.ports import free_port
from chorus.platform.process import signals
from chorus.platform.process.beats import Monitor
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.losses import Loss, loss_of_exit
from chorus.platform.process.output import RotatingLog
from chorus.platform.process.restarts import RestartPolicy, python
from chorus.platform.process.threads import to_the_end
from chorus.platform.process.timing import DEFAULTS, WatchTimes
from chorus.platform.process.watcher import Watched, Watcher

log = logging.getLogger("chorus.agent")

GRACE_SECONDS = 3.0
"""How long a rank may take to end by itself before it is killed."""
KEPT_ENDED = 16
_TAKEN_SECONDS = 0.1


USUAL_FRACTION = 0.8
"""Of what is free, that ranks may take where no plan was made."""


class NoPort(ChorusError):
    """Every port that ranks of this node may use is taken: names them."""


@dataclass
class Coordinators:
    """The coordinators that watch one session: when they were last heard, and whether any is connected."""

    heard_at: float
    timing: WatchTimes
    connected: int = 0
    came: bool = False

    def heard(self, now: float) -> None:
        self.heard_at = now

    def silent(self, now: float) -> float:
        return now - self.heard_at

    def left(self, now: float) -> bool:
        """Whether there was somebody who is not there any more. Before they came, they may be busy with other nodes."""
        return self.came and (not self.connected or self.silent(now) > self.timing.abandon_seconds)


@dataclass
class Rank:
    session: str
    number: int
    port: int
    model: str
    process: asyncio.subprocess.Process
    watched: Watched
    pump: asyncio.Task[bytes]
    booking: Booking
    last_words: str = ""
    loss: Loss | None = None
    """What its end means, once it has ended."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def state(self) -> wire.RankState:
        beat = self.watched.beat
        running = self.process.returncode is None
        return wire.RankState(
            session=self.session,
            rank=self.number,
            pid=self.process.pid,
            port=self.port,
            model=self.model,
            running=running,
            exit_code=self.process.returncode or 0,
            step=beat.step,
            step_at=beat.step_at,
            loaded_bytes=beat.loaded_bytes,
            total_bytes=beat.total_bytes,
            memory_bytes=self.watched.memory if running else 0,
            last_words=self.last_words,
            loss_cause=self.loss.cause if self.loss else "",
            loss_told=self.loss.told if self.loss else "",
            booked_bytes=self.booking.amount if running else 0,
        )


class Ranks:
    def __init__(self, host: str, ports: Sequence[int], output: RotatingLog, ledger_file: Path) -> None:
        self._host = host
        self._ledger = Ledger(ledger_file, lambda: self._measured or usable_here(USUAL_FRACTION))
        self._measured = 0
        """What the last plan was told that there is, while nothing was booked: it is held to that."""
        self.unbooked = 0
        """What the ledger had left when it was last looked at: heartbeats must not wait for it."""
        self._ports = ports
        self._output = output
        self._lifeline = Lifeline()
        self._ranks: dict[tuple[str, int], Rank] = {}
        self._watcher = Watcher()
        self._spare: list[Monitor] = []
        """Monitors of ranks that are gone."""
        self._coordinators: dict[str, Coordinators] = {}
        self._keepers: set[asyncio.Task[None]] = set()
        self._awake = Awake()
        self._promised: set[int] = set()
        """Ports of ranks that are being started."""
        self._had: set[int] = set()
        """Ports that ranks of this agent have listened on."""

    async def room(self, measured: int) -> int:
        """What a plan may use of this node: what the ledger leaves, or what was measured while nothing is booked."""

        def look() -> int:
            if self._ledger.bookings():
                return self._ledger.free()
            self._measured = measured
            return measured

        self.unbooked = await asyncio.to_thread(look)
        return self.unbooked

    @property
    def booked(self) -> int:
        """For the ranks that run."""
        return sum(rank.booking.amount for rank in self._ranks.values() if rank.process.returncode is None)

    def states(self) -> list[wire.RankState]:
        return [rank.state() for rank in self._ranks.values()]

    async def start(
        self,
        session: str,
        number: int,
        model: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        port: int | None = None,
        timing: WatchTimes = DEFAULTS,
        needs: int = 0,
        more: bool = True,
        most: int = 0,
    ) -> Rank:
        """Run `python -m chorus.rank` with a port of ours; `arguments` come after those that every rank gets. It is
        booked first (ledger.py): raises NoRoom.
        """
        await self.end(session, number)
        owner = _owner(session, number)
        try:
            booking = await to_the_end(self._ledger.grant, owner, needs, model, more, most)
            return await self._start(session, number, model, arguments, environment, port, timing, booking)
        except BaseException:
            await self._release(owner)
            raise
        finally:
            await self.look()

    async def look(self) -> None:
        """See what the ledger has left, for those who are told it."""
        try:
            self.unbooked = await asyncio.to_thread(self._ledger.free)
        except LedgerError as error:
            log.error("%s", error)

    async def _start(
        self,
        session: str,
        number: int,
        model: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        port: int | None,
        timing: WatchTimes,
        booking: Booking,
    ) -> Rank:
        port = await self._until_free(port) if port and not self._is_anothers(session, port) else self._free_port()
        with self._promise(port):
            monitor = self._spare.pop() if self._spare else Monitor(self._lifeline.path.parent)
            command = python("-m", "chorus.rank", "--rank", str(number), "--listen", f"{self._host}:{port}")
            process = await asyncio.create_subprocess_exec(
                *command,
                *arguments,
                env={
                    **os.environ,
                    **environment,
                    **booked_environment(booking.amount),
                    **self._lifeline.environment(),
                    **monitor.environment(),
                    **timing.environment(),
                },
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
            assert process.stdout is not None
            reader = asyncio.create_task(pump(process.stdout, self._output))
            watched = Watched(f"rank {number} of {model}", monitor, timing, process.pid)
            rank = Rank(session, number, port, model, process, watched, reader, booking)
            self._ranks[session, number] = rank
            self._had.add(port)
            self._coordinators.setdefault(session, Coordinators(time.monotonic(), timing))
            self._watcher.add(watched)
            self._keep(self._reap(rank))
            self._stay_awake()
            log.info("rank %d of %s runs as process %d on port %d", number, model, process.pid, port)
            return rank

    @contextlib.contextmanager
    def _promise(self, port: int) -> Iterator[None]:
        """Give the port to nobody else while its rank is being started."""
        self._promised.add(port)
        try:
            yield
        finally:
            self._promised.discard(port)

    async def end(self, session: str | None = None, number: int | None = None) -> int:
        """End the ranks of a session (or of all), and wait until they are gone."""
        chosen = [
            rank
            for key, rank in list(self._ranks.items())
            if (session is None or key[0] == session) and (number is None or key[1] == number)
        ]
        running = [rank for rank in chosen if rank.process.returncode is None]
        for rank in running:
            signals.send(rank.process, signal.SIGTERM)
        # Also those that have ended by themselves: what is booked for them is not free before.
        leaving = [rank for rank in chosen if not rank.ended.is_set()]
        if leaving:
            waits = [asyncio.create_task(rank.ended.wait()) for rank in leaving]
            await asyncio.wait(waits, timeout=GRACE_SECONDS)
            for rank in running:
                if rank.process.returncode is None:
                    signals.send(rank.process, signal.SIGKILL)
            _, late = await asyncio.wait(waits, timeout=GRACE_SECONDS)
            for wait in late:
                wait.cancel()
        for rank in chosen:
            self._drop((rank.session, rank.number))
        self._stay_awake()
        return len(running)

    @contextlib.contextmanager
    def watched(self, session: str, timing: WatchTimes = DEFAULTS) -> Iterator[Callable[[], None]]:
        """Somebody looks at the session; whenever they are heard, call what this gives."""
        coordinators = self._coordinators.setdefault(session, Coordinators(time.monotonic(), timing))
        coordinators.heard(time.monotonic())
        coordinators.connected += 1
        coordinators.came = True
        try:
            yield lambda: coordinators.heard(time.monotonic())
        finally:
            coordinators.connected -= 1

    async def watch(self) -> None:
        """Kill ranks that are dead without having ended, for ever."""
        await self._watcher.run()

    async def end_forgotten(self, late: bool = False) -> None:
        """End sessions from whose coordinator nothing was heard for a while: it is gone, or it stands still.

        Called again and again. An agent that comes `late` has yet to read what was said meanwhile.
        """
        now = time.monotonic()
        if late:
            for coordinators in self._coordinators.values():
                coordinators.heard(now)
        leases = {session: self._coordinators[session].timing.lease_seconds for session in self._sessions()}
        for session in [s for s, lease in leases.items() if self._coordinators[s].silent(now) > lease]:
            log.warning("nobody has watched session %s for %g s: ending its ranks", session, leases[session])
            await self.end(session)

    async def end_abandoned(self) -> int:
        """End the sessions whose coordinator has gone, before somebody else plans with this node's memory."""
        now = time.monotonic()
        left = [session for session in self._sessions() if self._coordinators[session].left(now)]
        for session in left:
            log.warning("session %s was left by its coordinator: ending its ranks", session)
        return sum(await asyncio.gather(*map(self.end, left)))

    def _sessions(self) -> set[str]:
        return {rank.session for rank in self._ranks.values()}

    async def until_taken(self, seconds: float) -> None:
        """Wait until every coordinator that is there has ended its ranks, but no longer than so many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(map(self._is_used, self._ranks.values())):
            await asyncio.sleep(_TAKEN_SECONDS)

    def _is_used(self, rank: Rank) -> bool:
        coordinators = self._coordinators[rank.session]
        there = coordinators.connected and not coordinators.left(time.monotonic())
        return rank.process.returncode is None and bool(there)

    async def close(self) -> None:
        await self.end()
        for keeper in list(self._keepers):
            keeper.cancel()
        for monitor in self._spare:
            monitor.close()
        self._spare.clear()
        self._lifeline.cut()

    def _free_port(self) -> int:
        taken = {rank.port for rank in self._ranks.values() if rank.process.returncode is None} | self._promised
        for port in self._ports or (0,):
            if port not in taken and (free := free_port(self._host, port)):
                return free
        raise NoPort(
            f"ports {min(self._ports)} to {max(self._ports)} are all taken: end other ranks, or give this node's rank "
            "a port with --port"
        )

    def _is_anothers(self, session: str, port: int) -> bool:
        """Whether another group's rank has the port, which will not go for this one's sake."""
        running = (rank for rank in self._ranks.values() if rank.process.returncode is None)
        return any(rank.port == port and rank.session != session for rank in running)

    async def _until_free(self, port: int) -> int:
        """Wait for a port that a rank of ours has had before: what holds it now may be about to go."""
        for pause in (*RestartPolicy.pauses, 0.0) if port in self._had else (0.0,):
            if free_port(self._host, port):
                return port
            if pause:
                log.warning("port %d of this node's rank is taken: trying again in %g s", port, pause)
            await asyncio.sleep(pause)
        raise NoPort(f"port {port} is taken: end what listens there or choose another")

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._keepers.add(task)
        task.add_done_callback(self._keepers.discard)

    async def _reap(self, rank: Rank) -> None:
        code = await rank.process.wait()
        memory = self._watcher.memory_kills.lately(time.monotonic())
        rank.loss = loss_of_exit(f"rank {rank.number}", code, memory, rank.watched.death)
        self._watcher.drop(rank.watched)
        await self._release(rank.booking.owner)
        with contextlib.suppress(Exception):
            rank.last_words = (await rank.pump).decode(errors="replace").strip()[-500:]
        rank.last_words = rank.watched.death or rank.last_words
        rank.ended.set()
        (log.info if code in (0, -signal.SIGTERM) else log.warning)(
            "rank %d (process %d) ended with %d: %s", rank.number, rank.process.pid, code, rank.last_words
        )
        self._drop_old()
        self._stay_awake()

    async def _release(self, owner: str) -> None:
        try:
            await asyncio.to_thread(self._ledger.release, owner)
        except LedgerError as error:
            log.error("%s", error)
        await self.look()

    def _drop_old(self) -> None:
        ended = [key for key, rank in self._ranks.items() if rank.ended.is_set()]
        for key in ended[:-KEPT_ENDED]:
            self._drop(key)

    def _drop(self, key: tuple[str, int]) -> None:
        if rank := self._ranks.pop(key, None):
            rank.watched.monitor.reset()
            self._spare.append(rank.watched.monitor)
            if rank.session not in self._sessions():
                self._coordinators.pop(rank.session, None)

    def _stay_awake(self) -> None:
        if any(rank.process.returncode is None for rank in self._ranks.values()):
            self._awake.hold()
        else:
            self._awake.release()


def _owner(session: str, number: int) -> str:
    return f"rank {number} of session {session}"
