"""A server of several models with a simulated clock: what `decide` says is done, and time passes at once."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from chorus.config.served import LoadConfig
from chorus.deploy.groups.decide import Decision, Standing, decide
from chorus.deploy.room import HERE, Need, Room
from chorus.messages.deploy import ModelState

HORIZON_SECONDS = 1e6


@dataclass
class Ask:
    model: str
    at: float
    seconds: float
    """How long its answer takes."""
    begun: float | None = None
    ended: float | None = None
    refused: str = ""


@dataclass
class Simulated:
    """Models by their name, with the bytes that each needs."""

    sizes: dict[str, int]
    budget: int
    policy: LoadConfig
    load_seconds: float = 3.0
    pinned: frozenset[str] = frozenset()
    lifetime: float | None = None
    now: float = 0.0
    loads: int = 0
    most_booked: int = 0
    standings: dict[str, Standing] = field(default_factory=dict)
    asks: list[Ask] = field(default_factory=list)
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    on_end: Callable[[Ask], None] = lambda ask: None

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.standings = {
            name: Standing(name, needs=(Need(amount),), pinned=name in self.pinned, lifetime=self.lifetime)
            for name, amount in self.sizes.items()
        }

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), act))

    def ask(self, model: str, seconds: float) -> Ask:
        asked = Ask(model, self.now, seconds)
        self.asks.append(asked)
        return asked

    def change(self, name: str, **values: object) -> None:
        self.standings[name] = replace(self.standings[name], **values)  # type: ignore[arg-type]

    def run(self) -> None:
        """Until nothing happens any more."""
        self._settle()
        while self._events and self.now < HORIZON_SECONDS:
            self.now, _, act = heapq.heappop(self._events)
            act()
            self._settle()

    @property
    def free(self) -> int:
        return self.budget - sum(standing.booked.get(HERE, 0) for standing in self.standings.values())

    def _settle(self) -> None:
        """Do what is decided until there is nothing left to do now."""
        for _ in range(100):
            self._begin_answers()
            self._end_drained()
            self._look()
            room = Room({HERE: self.free}, {HERE: self.budget})
            decided = decide(tuple(self.standings.values()), room, self.policy, self.now)
            self.decisions.append((self.now, decided))
            if not self._act(decided):
                if decided.look_at is not None:
                    assert decided.look_at > self.now
                    self.after(decided.look_at - self.now, lambda: None)
                return
        raise AssertionError(f"undecided at {self.now}: {self.decisions[-3:]}")

    def _act(self, decided: Decision) -> bool:
        for name in decided.load:
            self.loads += 1
            self.change(name, state=ModelState.LOADING, booked={HERE: self.sizes[name]}, wanted_since=None)
            self.most_booked = max(self.most_booked, self.budget - self.free)
            self.after(self.load_seconds, partial(self._loaded, name))
        for name in (*decided.make_room, *decided.go_idle):
            self.change(name, state=ModelState.DRAINING, makes_room=name in decided.make_room)
        for name in decided.keep:
            self.change(name, state=ModelState.READY)
        for name, why in decided.refuse.items():
            for asked in self._waiting(name):
                asked.refused, asked.ended = why, self.now
                self.on_end(asked)
        return bool(decided.load or decided.make_room or decided.go_idle or decided.keep or decided.refuse)

    def _loaded(self, name: str) -> None:
        self.change(name, state=ModelState.READY, ready_since=self.now)

    def _waiting(self, name: str) -> list[Ask]:
        return [asked for asked in self.asks if asked.model == name and asked.begun is None and asked.ended is None]

    def _running(self, name: str) -> list[Ask]:
        return [asked for asked in self.asks if asked.model == name and asked.begun is not None and asked.ended is None]

    def _begin_answers(self) -> None:
        for name, standing in self.standings.items():
            if standing.state is ModelState.READY:
                for asked in self._waiting(name):
                    asked.begun = self.now
                    self.after(asked.seconds, partial(self._end, asked))

    def _end(self, asked: Ask) -> None:
        assert self.standings[asked.model].state in (ModelState.READY, ModelState.DRAINING), "an answer was cut"
        asked.ended = self.now
        self.change(asked.model, idle_since=self.now)
        self.on_end(asked)

    def _end_drained(self) -> None:
        for name, standing in self.standings.items():
            if standing.state is ModelState.DRAINING and not self._running(name):
                self.change(name, state=ModelState.UNLOADED, booked={})

    def _look(self) -> None:
        for name in self.standings:
            waiting = self._waiting(name)
            since = min((asked.at for asked in waiting), default=0.0)
            self.change(name, waiting=len(waiting), waiting_since=since, running=len(self._running(name)))
