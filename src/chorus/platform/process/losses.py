"""How a process that had served ended, and whom that may be blamed on.

Whoever starts a process again hands on to it how the one before ended: only a parent knows, and those who must decide
whether a request is to blame are the processes themselves.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from chorus.platform.process.exits import EXIT_FAULT, EXIT_LEADER_GONE, EXIT_NO_MEMORY, EXIT_RANK_LOST
from chorus.platform.process.no_memory import out_of_memory
from chorus.platform.process.restarts import describe_exit

_VARIABLE = "CHORUS_LAST_LOSS"

_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT, signal.SIGILL, signal.SIGTRAP}
"""What a process gets for what it does itself; all others are sent to it."""
_PASSED_ON = {0, EXIT_RANK_LOST, EXIT_LEADER_GONE}
"""Codes of those that end because somebody else has."""


class Cause(StrEnum):
    """The later ones tell more."""

    OUTSIDE = "outside"
    """Somebody's signal, a machine, a cable: no request is to blame."""
    FAULT = "fault"
    """What the process itself did: perhaps for a request."""
    MEMORY = "memory"
    """There was too little: perhaps for a request, and certainly for all that was kept."""

    @classmethod
    def read(cls, text: str) -> Cause:
        """As another process wrote it; nobody is blamed where it says nothing that we know."""
        return cls(text) if text in tuple(cls) else cls.OUTSIDE


@dataclass(frozen=True)
class Loss:
    cause: Cause
    told: str
    """For people: who, and how."""

    def environment(self) -> dict[str, str]:
        """For the process that is started in its place."""
        return {_VARIABLE: json.dumps(asdict(self))}


def exit_code(cause: Cause) -> int:
    """By which a process tells its parent the same, where it ends for another one's failure."""
    return {Cause.OUTSIDE: EXIT_RANK_LOST, Cause.FAULT: EXIT_FAULT, Cause.MEMORY: EXIT_NO_MEMORY}[cause]


def passed_on(code: int) -> bool:
    """Whether a process that ended so ended because another one had."""
    return code in _PASSED_ON


def gravest(losses: Iterable[Loss]) -> Loss:
    """The one that tells most of several that belong together, the earliest of equals: a rank that fails takes others
    along, and their ends tell nothing.
    """
    return max(losses, key=lambda loss: list(Cause).index(loss.cause))


def last_loss(environment: Mapping[str, str] = os.environ) -> Loss | None:
    """How the process before this one ended, where whoever started this one has told."""
    told = environment.get(_VARIABLE)
    return Loss(**{**(found := json.loads(told)), "cause": Cause(found["cause"])}) if told else None


def loss_told(cause: str, told: str) -> Loss | None:
    """As another process tells it; None: it knows of none."""
    return Loss(Cause.read(cause), told) if cause else None


def cause_of(error: BaseException) -> Cause:
    """Of a process whose step failed with this error."""
    return Cause.MEMORY if out_of_memory(error) else Cause.FAULT


def loss_of_exit(name: str, code: int, killed_for_memory: bool = False, death: str = "") -> Loss:
    """What an exit code means; `killed_for_memory`: the system says that it ended one of ours for that;
    `death`: why whoever watched it has killed it.
    """
    if death:
        return Loss(Cause.OUTSIDE, f"{name} was {death}")
    told = f"{name} ended with {describe_exit(code)}"
    if code == EXIT_NO_MEMORY or (code == -signal.SIGKILL and killed_for_memory):
        return Loss(Cause.MEMORY, f"{told}: out of memory")
    if code < 0:
        return Loss(Cause.FAULT if -code in _OWN_SIGNALS else Cause.OUTSIDE, told)
    return Loss(Cause.OUTSIDE if passed_on(code) else Cause.FAULT, told)
