"""Which models are loaded, which make room, and which are refused: decided from values, without a process or a clock.

What fits is loaded at once, the longest waiting first. Where something does not fit, others make room for it, those
that are idle before those that are busy, and none that could as well stay. A busy one does so only after it has served
for `min_loaded_seconds`, and an idle one has a moment's rest before it does, so that two models that are asked for in
turn do not chase each other. Whoever has waited for `min_loaded_seconds` is not passed by anybody who came later,
however small: so everybody's turn comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chorus.config.served import LoadConfig
from chorus.deploy.room import Bytes, Need, Room, spread, unmet, with_more
from chorus.messages.deploy import ModelState
from chorus.platform.sizes import size

REST_SECONDS = 2.0
"""How long an idle model is spared, for those who ask one thing after the other."""


@dataclass(frozen=True)
class Standing:
    """One model at one moment. Moments are of one clock."""

    id: str
    state: ModelState = ModelState.UNLOADED
    needs: tuple[Need, ...] | None = None
    """The least that it can be loaded with; None: nobody has looked yet."""
    booked: Bytes = field(default_factory=dict)
    waiting: int = 0
    waiting_since: float = 0.0
    running: int = 0
    idle_since: float = 0.0
    """Since when nobody has asked for it."""
    ready_since: float = 0.0
    pinned: bool = False
    lifetime: float | None = None
    """How long it stays when it is idle; None: until its room is needed."""
    wanted_since: float | None = None
    """Since when a command, or the start of the server, wants it loaded, whoever asks for it."""
    gently: bool = False
    """It is wanted only if it fits beside the others."""
    forced: bool = False
    """It is to be loaded whether it fits or not."""
    retry_at: float = 0.0
    """Of one that failed: it is not tried again before."""
    makes_room: bool = False
    """Of one that drains: for another's sake; otherwise since it was idle."""
    ends: bool = False
    """Of one that drains: it was told to, and nothing brings it back."""
    unfit: str = ""
    """Why there was no plan for it, though all that is left would do: `needs` is more since then."""

    @property
    def asked_since(self) -> float | None:
        """Since when somebody wants it; None: nobody does."""
        moments = [self.wanted_since, self.waiting_since if self.waiting else None]
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def drains(self) -> bool:
        return self.state is ModelState.DRAINING

    @property
    def idle(self) -> bool:
        return not self.running and self.asked_since is None

    @property
    def goes_at(self) -> float | None:
        """When it is unloaded for idleness, unless it is asked for; None: it stays."""
        if self.state is not ModelState.READY or not self.idle or self.lifetime is None or self.lifetime < 0:
            return None
        return max(self.idle_since, self.ready_since) + self.lifetime

    def spared_until(self, policy: LoadConfig) -> float:
        """When it may make room for another."""
        served = self.ready_since + policy.min_loaded_seconds
        if not self.idle:
            return served
        return min(served, max(self.idle_since, self.ready_since) + REST_SECONDS)


@dataclass(frozen=True)
class Decision:
    find: tuple[str, ...] = ()
    """To be looked for: how much they need is not known."""
    load: tuple[str, ...] = ()
    make_room: tuple[str, ...] = ()
    """To be drained, since others wait for their room."""
    go_idle: tuple[str, ...] = ()
    """To be drained, since nobody asks for them."""
    keep: tuple[str, ...] = ()
    """Were drained and are wanted again, or nobody needs their room any more."""
    refuse: dict[str, str] = field(default_factory=dict)
    """Why, with the figures."""
    wait: dict[str, str] = field(default_factory=dict)
    """For what."""
    look_at: float | None = None
    """When to decide again if nothing happens before."""


@dataclass
class _Left:
    """What is left of the memory while one model after the other is given its part."""

    free: dict[str, int]
    coming: dict[str, int]
    """What those that drain now will leave."""

    def take(self, needs: Sequence[Need]) -> None:
        for machine, amount in spread(needs, self.all).items():
            self.coming[machine] -= max(0, amount - self.free[machine])
            self.free[machine] = max(0, self.free[machine] - amount)

    def comes(self, models: Iterable[Standing]) -> None:
        self.coming = with_more(self.coming, (model.booked for model in models))

    @property
    def all(self) -> dict[str, int]:
        return with_more(self.free, [self.coming])


def decide(models: Sequence[Standing], room: Room, policy: LoadConfig, now: float) -> Decision:
    """What to do now."""
    asked = sorted((model for model in models if _can_begin(model, now)), key=lambda model: model.asked_since or 0.0)
    draining = [model for model in models if model.drains]
    left = _Left(dict(room.free), dict.fromkeys(room.free, 0))
    left.comes(draining)
    find, load, victims = [], [], list[Standing]()
    refuse: dict[str, str] = {}
    wait: dict[str, str] = {}
    not_passed = ""
    """Who has waited so long that nobody who came later may take what it waits for."""
    looks = [model.retry_at for model in models if model.state is ModelState.FAILED and model.retry_at > now]
    for model in asked:
        if model.needs is None:
            find.append(model.id)
        elif model.forced or not (not_passed or unmet(model.needs, left.free)):
            load.append(model.id)
            left.take(model.needs)
        elif not_passed:
            wait[model.id] = f"waits until {not_passed} is loaded, which was asked for before"
        elif not unmet(model.needs, left.all):
            wait[model.id] = f"waits until {_names(draining or victims)} made room"
            left.take(model.needs)
        else:
            never = unmet(model.needs, _most(models, room))
            if never or policy.on_full == "refuse" or (model.gently and not model.waiting):
                lacking = never or unmet(model.needs, room.free) or unmet(model.needs, left.all)
                refuse[model.id] = _refusal(model, lacking[0], models, room)
                continue
            others = [other for other in models if other not in victims and _could_go(other)]
            need = (unmet(model.needs, room.free) or unmet(model.needs, left.all))[0]
            wait[model.id] = (
                f"waits for room: {size(need.amount)} are needed{_where(need, room)} and "
                f"{size(need.left(room.free))} are left"
            )
            ripe = [other for other in others if _is_ripe(other, policy, now)]
            looks += [other.spared_until(policy) for other in others if other.state is ModelState.READY]
            if policy.on_full == "swap" and (chosen := _victims(ripe, model.needs, left.all)):
                victims += chosen
                left.comes(chosen)
                wait[model.id] = f"waits until {_names(chosen)} made room"
                left.take(model.needs)
                continue
            if policy.on_full == "swap":
                passed_until = (model.asked_since or 0.0) + policy.min_loaded_seconds
                if passed_until <= now:
                    not_passed = model.id
                else:
                    looks.append(passed_until)
    needs_room = bool(wait)
    idle = [model for model in models if model not in victims and model.goes_at is not None]
    looks += [model.goes_at for model in idle if model.goes_at is not None]
    return Decision(
        tuple(find),
        tuple(load),
        tuple(model.id for model in victims),
        tuple(model.id for model in idle if model.goes_at is not None and model.goes_at <= now),
        tuple(model.id for model in draining if _comes_back(model, needs_room)),
        refuse,
        wait,
        min((moment for moment in looks if moment > now), default=None),
    )


def _can_begin(model: Standing, now: float) -> bool:
    if model.asked_since is None or model.state in (ModelState.LOADING, ModelState.READY, ModelState.DRAINING):
        return False
    return model.state is not ModelState.FAILED or model.retry_at <= now


def _could_go(model: Standing) -> bool:
    """Whether it would ever make room for another."""
    return not model.pinned and model.state in (ModelState.READY, ModelState.LOADING)


def _most(models: Sequence[Standing], room: Room) -> Bytes:
    """What could ever be left; nobody knows before it is loaded where one will be that is still being spread."""
    if any(model.state is ModelState.LOADING and _chooses(model, room) for model in models):
        return room.budget
    return with_more(room.free, (model.booked for model in models if model.drains or _could_go(model)))


def _chooses(model: Standing, room: Room) -> bool:
    """Whether it may be on one machine or on another."""
    return any(sum(map(need.counts, room.free)) > 1 for need in model.needs or ())


def _is_ripe(model: Standing, policy: LoadConfig, now: float) -> bool:
    return model.state is ModelState.READY and model.spared_until(policy) <= now


def _victims(ripe: Iterable[Standing], needs: Sequence[Need], left: Bytes) -> list[Standing]:
    """Of those that hold something where it is missing the longest idle first, then those that have served longest,
    without those that turn out not to be needed; none where all together would not do.
    """
    chosen: list[Standing] = []
    for model in sorted(
        ripe, key=lambda model: (not model.idle, model.idle_since if model.idle else model.ready_since)
    ):
        if any(need.left(model.booked) for need in unmet(needs, _after(chosen, left))):
            chosen.append(model)
    if unmet(needs, _after(chosen, left)):
        return []
    for model in tuple(chosen):
        others = [other for other in chosen if other is not model]
        if not unmet(needs, _after(others, left)):
            chosen = others
    return chosen


def _after(gone: Iterable[Standing], left: Bytes) -> dict[str, int]:
    return with_more(left, (model.booked for model in gone))


def _comes_back(model: Standing, needs_room: bool) -> bool:
    if model.ends:
        return False
    return not needs_room if model.makes_room else model.waiting > 0 and not needs_room


def _refusal(model: Standing, need: Need, models: Sequence[Standing], room: Room) -> str:
    free, budget = need.left(room.free), need.left(room.budget)
    held = [(other, amount) for other in models if (amount := need.left(other.booked))]
    parts = [f"{other.id} {size(amount)}{' (pinned)' if other.pinned else ''}" for other, amount in held]
    if (elsewhere := budget - free - sum(amount for _, amount in held)) > 0:
        parts.append(f"other servers {size(elsewhere)}")
    taken = f", taken by {', '.join(parts)}" if parts else ""
    figures = f"{size(free)} of {size(budget)} are left{taken}"
    if model.unfit:  # its plan says what would help, and cannot be forced
        return f"no room for {model.id}: {model.unfit} ({figures})"
    return (
        f"no room for {model.id}: it needs {size(need.amount)}{_where(need, room)}, and {figures}"
        "; unload one of them, choose a smaller context, or load it anyway with --force"
    )


def _where(need: Need, room: Room) -> str:
    """Of which machines, where others have memory too."""
    machines = [machine for machine in room.budget if need.counts(machine)]
    return "" if len(machines) == len(room.budget) else f" on {', '.join(machines)}"


def _names(models: Iterable[Standing]) -> str:
    return " and ".join(model.id for model in models)
