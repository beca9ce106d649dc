"""A worker's address: whoever leads a model is given a process of its own there, for as long as it leads.

The worker itself loads nothing. Each leader asks it for a place, which is booked in this machine's ledger, and talks to
the process that is started for it from then on; nobody is ever served from what another one has loaded. When a leader
lets go of its model, or is gone for a while, its process ends, and with it all the memory that it took.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from chorus import __version__
from chorus.deploy.supervisor import ProcessGroup, Program
from chorus.errors import CannotListen, ChorusError
from chorus.messages.load import Greeting
from chorus.messages.proto import rank_pb2, rank_pb2_grpc
from chorus.messages.protocol import PROTOCOL
from chorus.platform.accelerator import device
from chorus.platform.memory.amounts import booked_environment
from chorus.platform.memory.ledger import Ledger, LedgerError
from chorus.platform.process.exits import EXIT_LEADER_GONE
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.restarts import Restarts, describe_exit
from chorus.platform.process.threads import to_the_end
from chorus.platform.process.timing import WatchTimes
from chorus.transport.channel import OPTIONS

log = logging.getLogger("chorus.worker")

Result = TypeVar("Result")

MOST_PLACES = 16
START_SECONDS = 120.0
GRACE_SECONDS = 3.0
_LOOK_SECONDS = 0.02
_MOST_LETTERS = 100


class NoPlace(ChorusError):
    """A leader cannot be given a process here: says why."""


@dataclass
class _Place:
    """What one leader's group has here."""

    group: str
    model: str
    processes: ProcessGroup
    address_file: Path
    restarts: Restarts = field(default_factory=Restarts)
    leaders: int = 0
    """Calls of its leader that last: none while it is away."""
    port: int = 0
    """Of the process that runs; 0: none does."""
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process that runs now has ended."""
    let_go: bool = False
    """Whether that was because its leader had no use for it any more."""
    not_before: float = 0.0
    """When the next one may be started; infinity: too many were lost in a row."""


class Places(rank_pb2_grpc.RankServicer):
    """Those of one worker. To leaders it is the rank that the hostfile lists, until they have their process."""

    def __init__(self, rank: int, address: str, program: Program, ledger: Ledger, timing: WatchTimes) -> None:
        """`program` is a rank that still lacks what differs between leaders: its port, its group, its memory."""
        self._rank = rank
        self._address = address
        self._program = program
        self._ledger = ledger
        self._timing = timing
        self._lifeline = Lifeline()
        self._places: dict[str, _Place] = {}
        self._ending: list[_Place] = []
        """Places that are nobody's any more, whose memory is not free yet."""
        self._opening = asyncio.Lock()
        self._keepers: set[asyncio.Task[Any]] = set()
        self._server: grpc.aio.Server | None = None
        self._numbers = 0

    async def open(self) -> None:
        """Raises CannotListen."""
        self._server = grpc.aio.server(options=OPTIONS)
        rank_pb2_grpc.add_RankServicer_to_server(self, self._server)
        try:
            self._server.add_insecure_port(self._address)
        except RuntimeError:
            raise CannotListen(
                f"cannot listen on {self._address}: is another process using it? end it, or change the hostfile"
            ) from None
        await self._server.start()
        log.info("rank %d at %s waits for its leader", self._rank, self._address)

    async def close(self) -> None:
        if self._server:
            await self._server.stop(grace=0)
        for keeper in list(self._keepers):
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(self._end(place) for place in list(self._places.values())))
        self._lifeline.cut()

    async def Hello(
        self, request: rank_pb2.HelloRequest, context: grpc.aio.ServicerContext[rank_pb2.HelloRequest, object]
    ) -> rank_pb2.HelloReply:
        return Greeting(
            version=__version__,
            protocol=PROTOCOL,
            rank=self._rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=device.backend(),
            opens=True,
        ).to_wire()

    async def Room(
        self, request: rank_pb2.RoomRequest, context: grpc.aio.ServicerContext[rank_pb2.RoomRequest, object]
    ) -> rank_pb2.RoomReply:
        try:
            budget, bookings = await asyncio.to_thread(lambda: (self._ledger.budget(), self._ledger.bookings()))
        except LedgerError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        # What a leader has left goes as soon as somebody else needs it.
        left = {place.group for place in (*self._places.values(), *self._ending) if not place.leaders}
        own = {booking.owner: booking.amount for booking in bookings if booking.pid == os.getpid()}
        taken = sum(booking.amount for booking in bookings)
        loose = sum(amount for owner, amount in own.items() if owner in left)
        held = 0 if request.group in left else own.get(request.group, 0)
        return rank_pb2.RoomReply(free=max(0, budget - taken + loose), budget=budget, held=held)

    async def Load(
        self, request: rank_pb2.LoadRequest, context: grpc.aio.ServicerContext[rank_pb2.LoadRequest, object]
    ) -> None:
        told = f"rank {self._rank} starts a process for each leader, and this one has asked for none"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{told}: install a newer Chorus where it runs")

    async def Place(
        self, request: rank_pb2.PlaceRequest, context: grpc.aio.ServicerContext[rank_pb2.PlaceRequest, object]
    ) -> None:
        place = None
        try:
            while place is None or not await asyncio.shield(self._keep(self._start(place, request.fresh))):
                place = await self._taken(request)
            over = place.over
            await context.write(rank_pb2.PlaceReply(port=place.port))
            await over.wait()
        except ChorusError as error:
            log.warning("a leader of %s is refused: %s", _plain(request.model), error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        finally:
            if place:
                self._leave(place)

    async def _taken(self, request: rank_pb2.PlaceRequest) -> _Place:
        """The group's own place, or a new one if there is room for it; raises NoRoom, or NoPlace."""
        async with self._opening:
            place = self._places.get(request.group) or await self._new(request)
            place.leaders += 1
            return place

    def _leave(self, place: _Place) -> None:
        place.leaders -= 1
        if not place.leaders:
            self._keep(self._wait_for_leader(place))

    async def _new(self, request: rank_pb2.PlaceRequest) -> _Place:
        if not request.group:
            raise NoPlace("the leader does not say which group it leads")
        if len(self._places) >= MOST_PLACES:
            raise NoPlace(f"{len(self._places)} leaders have a place here, the most there may be")
        # Another process may have the ledger locked: leaders that have their place must not wait for that.
        if request.needs > await asyncio.to_thread(self._ledger.free):
            # Who has left keeps what it had for a while, but not when somebody else needs it.
            left = [place for place in self._places.values() if not place.leaders]
            ends = (self._keep(self._give_up(place)) for place in (*left, *self._ending))
            await asyncio.gather(*map(asyncio.shield, ends))
        model = _plain(request.model)
        try:
            booking = await to_the_end(self._ledger.grant, request.group, request.needs, model, request.more)
        except asyncio.CancelledError:
            await asyncio.to_thread(self._ledger.release, request.group)
            raise
        self._numbers += 1
        address_file = self._lifeline.path.parent / f"place-{self._numbers}"
        host = self._address.rpartition(":")[0]
        own = ("--listen", f"{host}:0", "--address-file", str(address_file), "--group", request.group)
        program = replace(
            self._program,
            arguments=(*self._program.arguments, *own),
            environment={**self._program.environment, **booked_environment(booking.amount)},
        )
        processes = ProcessGroup("rank", [program], self._lifeline, GRACE_SECONDS, self._timing)
        place = self._places[request.group] = _Place(request.group, model, processes, address_file)
        return place

    async def _start(self, place: _Place, fresh: bool) -> bool:
        """Have its process run; False where the place was just given up. Raises NoPlace when it does not come up."""
        async with place.changing:
            if place.port and fresh:
                await place.processes.stop()
                await place.over.wait()
            if self._places.get(place.group) is not place:
                return False
            if place.port:
                return True
            if math.isinf(place.not_before):
                raise NoPlace(f"rank {self._rank} of {place.model} keeps ending: the worker's log says how")
            await asyncio.sleep(max(0.0, place.not_before - time.monotonic()))
            if place.restarts.lost:
                log.info("the leader of %s is back for its rank %d: starting it again", place.model, self._rank)
            place.address_file.unlink(missing_ok=True)
            place.over, place.let_go = asyncio.Event(), False
            await place.processes.start()
            self._keep(self._until_over(place, place.over))
            place.port = await self._port(place)
            return True

    async def _port(self, place: _Place) -> int:
        deadline = time.monotonic() + START_SECONDS
        while not place.address_file.exists():
            if place.over.is_set():
                raise NoPlace(f"rank {self._rank} of {place.model} could not start: the worker's log says why")
            if time.monotonic() > deadline:
                await place.processes.stop()
                raise NoPlace(f"rank {self._rank} of {place.model} did not start within {START_SECONDS:g} s")
            await asyncio.sleep(_LOOK_SECONDS)
        return int(place.address_file.read_text().rpartition(":")[2])

    async def _until_over(self, place: _Place, over: asyncio.Event) -> None:
        _, code = await place.processes.ended()
        place.let_go = code in (0, EXIT_LEADER_GONE)
        if place.let_go:
            place.restarts.has_run()
            log.info("rank %d of %s has ended with its leader", self._rank, place.model)
        else:
            now = time.monotonic()
            pause = place.restarts.pause(code, now, place.processes.life(now))
            place.not_before = math.inf if pause is None else now + pause
            log.warning("rank %d of %s ended with %s", self._rank, place.model, describe_exit(code))
        place.port = 0
        over.set()

    async def _wait_for_leader(self, place: _Place) -> None:
        """Its leader has gone. One that was lost is soon back; one that has ended has let its rank go."""
        deadline = time.monotonic() + self._timing.lease_seconds
        while not place.leaders and not place.let_go and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        if not place.leaders:
            await self._give_up(place)

    async def _give_up(self, place: _Place) -> None:
        """End it, unless its leader is back. One that is ending already has ended then."""
        async with place.changing:
            if self._places.get(place.group) is not place or place.leaders:
                return
            if not place.let_go:
                log.warning("the leader of %s is gone: its rank %d ends", place.model, self._rank)
            await self._end(place)

    async def _end(self, place: _Place) -> None:
        del self._places[place.group]
        self._ending.append(place)
        try:
            await place.processes.stop()
            place.processes.close()
            place.over.set()
            await asyncio.to_thread(self._ledger.release, place.group)
        finally:
            self._ending.remove(place)

    def _keep(self, work: Coroutine[None, None, Result]) -> asyncio.Task[Result]:
        task = asyncio.create_task(work)
        self._keepers.add(task)
        task.add_done_callback(self._keepers.discard)
        return task


def _plain(text: str) -> str:
    """A name that a stranger sent, for logs and errors."""
    return "".join(letter for letter in text if letter.isprintable())[:_MOST_LETTERS] or "a model"
