"""Which faults happen, to whom and when: a plan is plain data, and all of it follows from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from chorus.platform.faults import FRONT_END

LEADER = 0
OUTSIDE = "outside"
"""The place of a fault that comes as a signal from another process, at any moment."""
COORDINATOR = "coordinator"
"""The kind of a fault that ends `chorus serve` itself."""
PAUSE = "pause"
"""The kind of a fault that is none: a process stands still for less time than anybody minds."""
CLOCK = "clock"
"""Another that is none: the time of day is an hour off for a while, in all processes."""
HANDOVER = "handover"
"""And a third: the front end is replaced on purpose."""
CUT, BRIEF_CUT, DUMB, SLOW = "cut", "brief cut", "one way", "slow link"
"""Kinds of faults of a cable: it is out and stays out; it is out, or passes one way only, for less time than anybody
minds; it is slow for a while.
"""
BORNE = (PAUSE, CLOCK, HANDOVER, BRIEF_CUT, DUMB, SLOW)
"""What is to be noticed by nobody."""

SELF_INFLICTED = ("exit", "kill", "stop", "error", "memory")
FRONT_END_KINDS = ("exit", "kill", "stop")
LEADER_PLACES = ("sent", "forward", "sample", "tell")
FOLLOWER_PLACES = ("begin", "forward", "send", "answer")
FRONT_END_PLACES = ("request", "event")
STEPS_AHEAD = 30
THEN_SECONDS = 4.0
TINY, SMOLLM2 = "tiny", "smollm2-135m"
HTTP, LOCALAI, CLUSTER = "http", "localai", "cluster"


TOLD = {
    COORDINATOR: "kill of the supervisor",
    CLOCK: "clocks an hour off",
    HANDOVER: "front end replaced on purpose",
    CUT: "cable of a follower's host cut",
    BRIEF_CUT: "cable out for a second",
    DUMB: "cable passes one way for a second",
    SLOW: "cable at 2 Mbit/s",
}


@dataclass(frozen=True)
class Group:
    """A model over its ranks: one server for many faults."""

    parallel: str
    transport: str
    ranks: int
    model: str = TINY
    served: str = HTTP
    """Here, to LocalAI, or over the nodes of a cluster."""

    @property
    def name(self) -> str:
        return f"{self.parallelism}-{self.ranks}-{self.model}-{self.served}"

    @property
    def parallelism(self) -> str:
        return f"{self.parallel}/{self.transport}"


@dataclass(frozen=True)
class PlannedFault:
    kind: str
    place: str
    rank: int
    after: float
    """So many steps from now; from outside, so many seconds. In a front end it is the next time."""
    then: PlannedFault | None = None
    """Another one, before the first is over."""

    @property
    def victim(self) -> str:
        if self.kind in TOLD:
            return self.kind
        return {FRONT_END: "front end", LEADER: "leader"}.get(self.rank, "follower")

    @property
    def victims(self) -> set[int]:
        """The ranks that it befalls."""
        return {self.rank} | (self.then.victims if self.then else set())

    @property
    def name(self) -> str:
        if self.kind in TOLD:
            return TOLD[self.kind]
        whom = f"rank {self.rank}" if self.rank > 0 else self.victim
        then = f", then {self.then.name}" if self.then else ""
        return f"{self.kind} of {whom} at {self.place} after {self.after:.3g}{then}"


@dataclass(frozen=True)
class Session:
    """One server and what happens to it, in order."""

    group: Group
    faults: tuple[PlannedFault, ...]


SHARES = {("pipeline", "grpc"): 0.45, ("pipeline", "ring"): 0.275, ("tensor", "mpi"): 0.275}
SIZES = (2, 3, 4)
FAULTS_PER_SERVER = 12
REAL_MODEL_FROM = 40
"""Fewer faults than these are not worth the start of a real model."""


class Deck:
    """Cards in a random order, then all of them again: few draws are as mixed as many."""

    def __init__(self, random: Random, cards: Sequence[str]) -> None:
        self._random, self._cards = random, cards
        self._left: list[str] = []

    def draw(self) -> str:
        self._left = self._left or self._random.sample(self._cards, len(self._cards))
        return self._left.pop()


class Dealer:
    """Draws the faults of one parallelism."""

    VICTIMS = ("follower", "follower", "leader", "follower", "leader", "front end", "follower", "leader")

    def __init__(self, random: Random, victims: Sequence[str] = VICTIMS) -> None:
        self._random = random
        self._victims = Deck(random, victims)
        self._inside = Deck(random, SELF_INFLICTED)
        self._outside = Deck(random, ("kill", "stop", PAUSE, "kill", "stop", CLOCK))
        self._where = Deck(random, ("inside", "inside", OUTSIDE))
        self._twice = Deck(random, ("", "", "", "", "", "twice"))
        self._front_end = Deck(random, FRONT_END_KINDS)
        self._front_end_outside = Deck(random, ("kill", "stop", HANDOVER))

    def deal(self, group: Group) -> PlannedFault:
        fault = self._deal(group)
        if fault.kind in BORNE or not self._twice.draw():
            return fault
        rank = self._random.randrange(group.ranks)
        return replace(fault, then=PlannedFault("kill", OUTSIDE, rank, self._random.uniform(0, THEN_SECONDS)))

    def _deal(self, group: Group) -> PlannedFault:
        random, victim, where = self._random, self._victims.draw(), self._where.draw()
        if victim == "front end" and where == OUTSIDE:
            return PlannedFault(self._front_end_outside.draw(), OUTSIDE, FRONT_END, random.random())
        if victim == "front end":
            return PlannedFault(self._front_end.draw(), random.choice(FRONT_END_PLACES), FRONT_END, 0)
        rank = LEADER if victim == "leader" else random.randrange(1, group.ranks)
        if where == OUTSIDE:
            return PlannedFault(self._outside.draw(), OUTSIDE, rank, random.random())
        places = LEADER_PLACES if rank == LEADER else follower_places(group)
        return PlannedFault(self._inside.draw(), random.choice(places), rank, random.randint(0, STEPS_AHEAD))


def follower_places(group: Group) -> Sequence[str]:
    """A rank that holds a slice of every layer sends nothing of its own."""
    return [place for place in FOLLOWER_PLACES if place != "send" or group.parallel == "pipeline"]


def draw(seed: int, faults: int) -> list[Session]:
    """So many faults in all, over all parallelisms; a tenth of them with a real model."""
    random = Random(f"chaos {seed}")
    sessions: list[Session] = []
    for place, ((parallel, transport), share) in enumerate(SHARES.items()):
        last, dealer = place == len(SHARES) - 1, Dealer(random)
        own = faults - sum(len(session.faults) for session in sessions) if last else round(faults * share)
        real = round(own / 10) if faults >= REAL_MODEL_FROM else 0
        possible = SIZES if real else SIZES[: 1 + (transport == "grpc")]  # for few, the smaller and quicker ones
        sizes = random.sample(possible, min(len(possible), max(1, (own - real) // FAULTS_PER_SERVER)))
        groups = [Group(parallel, transport, size) for size in sorted(sizes)]
        counts = [(own - real + index) // len(groups) for index in range(len(groups))]
        if real:
            groups, counts = [*groups, Group(parallel, transport, random.choice(SIZES[:2]), SMOLLM2)], [*counts, real]
        for group, count in zip(groups, counts, strict=True):
            drawn = [dealer.deal(group) for _ in range(count)]
            if count >= FAULTS_PER_SERVER and random.random() < 0.5:
                drawn[-1] = PlannedFault(COORDINATOR, OUTSIDE, LEADER, random.random())
            sessions.append(Session(group, tuple(drawn)))
    return [session for session in sessions if session.faults]


def draw_localai(seed: int, faults: int) -> list[Session]:
    """For LocalAI's protocol. Its front end keeps the ranks too: what ends it ends everything."""
    random = Random(f"chaos localai {seed}")
    dealer, sessions = Dealer(random, ("follower", "leader")), []
    for place, transport in enumerate(("grpc", "ring")):
        group = Group("pipeline", transport, random.choice(SIZES[:2]), served=LOCALAI)
        sessions.append(Session(group, tuple(dealer.deal(group) for _ in range((faults + place) // 2))))
    return [session for session in sessions if session.faults]


def draw_links(seed: int, faults: int) -> list[Session]:
    """Of cables between three hosts. A host whose cable is cut for good is not used again, so that comes last."""
    random = Random(f"chaos links {seed}")
    deck = Deck(random, (BRIEF_CUT, DUMB, SLOW))
    drawn = [PlannedFault(deck.draw(), OUTSIDE, random.choice((1, 2)), random.random()) for _ in range(faults - 1)]
    last = PlannedFault(CUT, OUTSIDE, random.choice((1, 2)), random.random())
    group = Group("pipeline", "grpc", 3, served=CLUSTER)
    return [Session(group, (*drawn, last))] if faults else []
