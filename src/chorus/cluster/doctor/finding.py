"""What a check says, and what a check is: a pure function from facts to findings, each with its fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

Status = Literal["ok", "warn", "error"]
Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Finding:
    name: str
    value: str
    status: Status = "ok"
    """An error is what Chorus, or this node of it, cannot work with."""
    fix: str = ""
    where: str = ""
    """The node, or the two ends of the link, that it is about; empty: this machine."""


@dataclass(frozen=True)
class Check(Generic[Facts]):
    name: str
    finds: str
    """The fault it is there for, as docs/doctor.md has it."""
    look: Callable[[Facts], Finding | Iterable[Finding]]
    """One finding, or as many as there are things to look at."""

    def __call__(self, facts: Facts) -> list[Finding]:
        found = self.look(facts)
        return [found] if isinstance(found, Finding) else list(found)


def look(checks: Iterable[Check[Facts]], facts: Facts, where: str = "") -> list[Finding]:
    """What all of these checks say, in their order."""
    return [replace(finding, where=where) for check in checks for finding in check(facts)]
