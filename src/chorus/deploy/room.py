"""The memory that models share, by machine: what a model needs of which, and what they have left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

HERE = "here"
"""This machine among others."""

Bytes = Mapping[str, int]
"""By the name of the machine that has them."""


@dataclass(frozen=True)
class Need:
    """So much must be left of some machines together before a model is loaded."""

    amount: int
    at: frozenset[str] | None = None
    """None: of all machines."""
    fits: Callable[[Bytes], bool] | None = field(default=None, compare=False)
    """Whether a plan would do with so much more of each machine than it had, where the sum alone does not tell."""
    had: Bytes = field(default_factory=dict, compare=False)

    def left(self, free: Bytes) -> int:
        return sum(amount for machine, amount in free.items() if self.counts(machine))

    def counts(self, machine: str) -> bool:
        return self.at is None or machine in self.at

    def is_met(self, free: Bytes) -> bool:
        """Machines of which nobody knows what they have are for those to ask who load on them."""
        if not any(map(self.counts, free)):
            return True
        more = {machine: amount - self.had.get(machine, 0) for machine, amount in free.items()}
        return self.left(free) >= self.amount and (self.fits is None or self.fits(more))

    def more_than(self, free: Bytes) -> Need:
        """That much more than what was left when it did not fit."""
        return replace(self, amount=self.left(free) + max(1, self.amount), had=free)


@dataclass(frozen=True)
class Room:
    """What machines have to share, and what can still be booked of that."""

    free: Bytes = field(default_factory=dict)
    budget: Bytes = field(default_factory=dict)


def unmet(needs: Sequence[Need], free: Bytes) -> list[Need]:
    return [need for need in needs if not need.is_met(free)]


def with_more(free: Bytes, given_back: Iterable[Bytes]) -> dict[str, int]:
    """What is left once others have given back what they hold; a machine that is not there gives nothing."""
    back = tuple(given_back)
    return {machine: amount + sum(each.get(machine, 0) for each in back) for machine, amount in free.items()}


def spread(needs: Sequence[Need], free: Bytes) -> dict[str, int]:
    """What a model will take of each machine: where its needs leave that open, first of those that have most left."""
    taken = dict.fromkeys(free, 0)
    for need in sorted(needs, key=lambda need: len(taken) if need.at is None else len(need.at)):
        machines = sorted(filter(need.counts, free), key=lambda machine: taken[machine] - free[machine])
        rest = need.amount - need.left(taken)
        for machine in machines:
            part = max(0, min(rest, free[machine] - taken[machine]))
            taken[machine] += part
            rest -= part
        if machines and rest > 0:
            taken[machines[0]] += rest
    return taken


def without(free: Bytes, needs: Sequence[Need]) -> dict[str, int]:
    """What is left beside a model that has these needs."""
    taken = spread(needs, free)
    return {machine: amount - taken[machine] for machine, amount in free.items()}
