"""What the requests of a front end wait for when their engine is lost: the next one, and their turn with it.

Whoever waits is told within a bounded time that there will be no answer; the time counts only while nothing moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator

from chorus.messages.proto import engine_pb2 as pb
from chorus.serving.engine_link.poison import Case, Poison
from chorus.serving.errors import EngineLost, RequestFailed
from chorus.telemetry import events
from chorus.telemetry.telling import tell

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""How often an engine is asked whether it serves again: it answers, but does not tell by itself."""
ASK_SECONDS = 2.0
_UNWATCHED_SECONDS = 10.0
"""After so long without a look nobody knows for how long nothing has moved."""
_MOST_SIGHTS = 10_000


class Patience:
    """How long nothing new was seen of an engine that does not serve."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._sights: set[Hashable] = set()
        self._spent = False
        self._moved = self._looked = float("-inf")

    def renew(self) -> None:
        self._sights.clear()
        self._spent = False
        self._looked = float("-inf")

    def spent(self, sight: Hashable, now: float) -> bool:
        """Whether there is none left. An engine that fails and starts over again and again shows nothing new."""
        new = sight not in self._sights and len(self._sights) < _MOST_SIGHTS
        if new or (now - self._looked > _UNWATCHED_SECONDS and not self._spent):
            self._sights.add(sight)
            self._moved = now
        self._looked = now
        self._spent = now - self._moved >= self.seconds
        return self._spent


def sight(seen: pb.Description | None) -> Hashable:
    """What tells that a load or a recovery moves."""
    return seen and (seen.state, round(seen.progress, 3), seen.detail, seen.step)


def told(seen: pb.Description | None) -> str:
    """What an engine does now, for people."""
    if seen is None:
        return "it does not answer"
    percent = f" ({seen.progress:.0%})" if seen.state == pb.LOADING else ""
    return f"it is {pb.EngineState.Name(seen.state).lower()}{percent}{f': {seen.detail}' if seen.detail else ''}"


class Recovery:
    """Of one front end: whether its engine is lost, who waits for the next one, and who may be sent to it first."""

    def __init__(
        self,
        describe: Callable[[float], Awaitable[pb.Description]],
        patience_seconds: float,
        takes_over: bool = False,
        model: str = "",
    ) -> None:
        """`takes_over`: another front end was lost, and this one stands in its place."""
        self._model = model
        self.poison = Poison()
        self._describe = describe
        self._takes_over = takes_over
        self._patience = Patience(patience_seconds)
        self._known = False
        """The engine served before; one that never has is not waited for."""
        self._lost: str | None = None
        """How the engine was lost, until the next one is ready."""
        self._lost_at = 0.0
        self._served: tuple[float, int] | None = None
        """Which engine was ready last, and its last step then."""
        self._futile = 0
        """How often it was the same one in a row, and no step later."""
        self._given_up = ""
        """Why no engine will come any more."""
        self._failures = 0
        self._failure = ""
        self._waiting = 0
        self._watch: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def waits(self) -> bool:
        return self._lost is not None

    def note(self, seen: pb.Description) -> None:
        """What the engine says of itself, whoever asked."""
        if seen.state in (pb.READY, pb.RECOVERING):
            self.serves()
        elif seen.loss.cause and not self._known:
            # This front end is new, and the engine is not: it has served, and will again.
            self.serves()
            self.lose(seen.loss.told)
        if seen.state == pb.READY and self._lost is None:
            self._served = seen.started_at, seen.step

    def unanswered(self, reason: str) -> None:
        """Nobody is there to say anything. Where a front end was lost before this one, its engine may have been lost
        with it: it has served, and will again.
        """
        if self._takes_over and not self._known:
            self.serves()
            self.lose(reason)

    def expect(self) -> None:
        """Whoever keeps the engine says that it serves: where nobody answers, it was lost, and will come again."""
        self._takes_over = True

    def serves(self) -> None:
        """It has answered as one that is ready does."""
        self._known = True

    def lose(self, reason: str, case: Case | None = None) -> bool:
        """The engine is gone, with this request; whether the next one is waited for."""
        if case:
            self.poison.lose(case)
        if not self._known or self._given_up:
            return False
        if self._lost is None:
            self._lost, self._lost_at = reason, time.monotonic()
            log.warning("the engine is lost, and what is open waits for the next one: %s", reason)
        self.wake()
        return True

    async def turn(self, case: Case, unwanted: Callable[[], bool] = lambda: False) -> None:
        """Waits until a request may be sent to the engine, or nobody wants it any more; raises when it never may be."""
        if why := self.poison.refusal(case.request):
            raise RequestFailed(why)
        self.poison.ask(case)
        try:
            with self._waiting_for_news():
                await self._my_turn(case, unwanted)
        finally:
            self.poison.stop_asking(case)
            self.wake()

    async def _my_turn(self, case: Case, unwanted: Callable[[], bool]) -> None:
        while not unwanted():
            if self._given_up:
                raise EngineLost(self._given_up)
            if self._lost is not None:
                await self._next_engine()
            elif case.verdict:
                raise RequestFailed(case.verdict)
            elif self.poison.may_go(case):
                self.poison.go(case)
                return
            else:
                await self._changed.wait()

    async def engine(self) -> None:
        """Waits for the next engine, where this one is lost."""
        with self._waiting_for_news():
            while self._lost is not None:
                if self._given_up:
                    raise EngineLost(self._given_up)
                await self._next_engine()

    @contextlib.contextmanager
    def _waiting_for_news(self) -> Iterator[None]:
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            # Nobody looks when nobody waits.
            if not self._waiting and self._watch:
                self._watch.cancel()
                self._watch = None
            self.wake()

    def grown(self, case: Case) -> None:
        self.poison.grown(case)
        self.wake()

    def leave(self, case: Case) -> None:
        self.poison.leave(case)
        self.wake()

    def give_up(self, reason: str) -> None:
        """There is no next engine: whoever waits hears so now, and so does whoever comes."""
        self._given_up = self._given_up or reason
        if self._watch:
            self._watch.cancel()
        self.wake()

    def wake(self) -> None:
        """Whoever waits looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def spend(self, failure: str) -> None:
        """Patience is at its end: for whoever waits now, and for whoever comes before anything has moved."""
        log.error("%s", failure)
        self._failures += 1
        self._failure = failure
        self.wake()

    async def _next_engine(self) -> None:
        """Waits for news of it; everybody shares one watcher."""
        before = self._failures
        if self._watch is None:
            self._watch = asyncio.create_task(self._look_out(), name="engine-recovery")
        await self._changed.wait()
        if self._failures != before:
            raise EngineLost(self._failure)

    async def _look_out(self) -> None:
        try:
            # The first look is not at once: an engine that ends may still say that it is ready.
            while self._lost is not None:
                await asyncio.sleep(LOOK_SECONDS)
                seen = await self.look()
                if seen and seen.state == pb.READY:
                    self._found(seen)
                elif self._patience.spent(sight(seen), time.monotonic()):
                    self.spend(self._no_engine(seen))
                    return
        finally:
            if self._watch is asyncio.current_task():
                self._watch = None
                # Whoever still waits sees to it that somebody looks out.
                self.wake()

    async def look(self) -> pb.Description | None:
        try:
            return await self._describe(ASK_SECONDS)
        except EngineLost:
            return None

    def _found(self, seen: pb.Description) -> None:
        served, self._served = self._served, (seen.started_at, seen.step)
        same_engine = served is not None and served[0] == seen.started_at
        self.poison.judge("" if same_engine else seen.loss.cause, seen.loss.told)
        self._patience.renew()
        self._futile = self._futile + 1 if self._served == served else 0
        if self._futile * LOOK_SECONDS > self._patience.seconds:
            self._futile = 0
            self.spend(f"the engine is ready and ends every session: {self._lost}")
        waited = time.monotonic() - self._lost_at
        log.warning("the engine serves again after %.1f s: %d requests go on", waited, self._waiting)
        tell(events.REQUESTS_RESUMED, model=self._model, streams=self._waiting, seconds=waited)
        self._lost = None
        self.wake()

    def _no_engine(self, seen: pb.Description | None) -> str:
        waited, patience = time.monotonic() - self._lost_at, self._patience.seconds
        return (
            f"the engine was lost {waited:.0f} s ago ({self._lost}) and nothing has moved for {patience:g} s: "
            f"{told(seen)}; try again later"
        )
