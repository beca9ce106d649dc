"""Whether and when what ended is started again."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
from dataclasses import dataclass

from chorus.platform.process.exits import EXIT_CANNOT_START


@dataclass(frozen=True)
class RestartPolicy:
    pauses: tuple[float, ...] = (1, 2, 4, 8, 16, 32)
    """Between tries of what has run before and cannot start now, or is lost again and again. Together they are longer
    than the minute for which a connection that was closed may keep its port."""
    refused_within_seconds: float = math.inf
    """Tries longer ago than this are forgotten."""
    settled_seconds: float = 60.0
    """What has served for so long, and for longer than it took to load, was not lost again but anew."""


@dataclass(frozen=True)
class Life:
    """One start of something: how many seconds it took to serve, and how many it served."""

    loading: float = 0.0
    served: float = 0.0
    delivered: int = 0
    """How many tokens its group had delivered until it ended, in all its starts together."""


NEVER_SERVED = Life()


class Restarts:
    """Decides, by how something ended, whether and when it is started again.

    Losses count while they are in a row. A token that was delivered in between ends the row: whatever keeps going
    wrong, clients get their answers. So does a time in which it has settled, for a model that nobody asks anything
    delivers nothing, and a front end never does.
    """

    def __init__(self, policy: RestartPolicy | None = None, ran: bool = False) -> None:
        """`ran`: it is known to have come up before."""
        self._policy = policy or RestartPolicy()
        self._lost = 0
        self._delivered = 0
        self._refused: list[float] = []
        self._ran = ran

    def pause(self, code: int, now: float, life: Life = NEVER_SERVED, most: int | None = None) -> float | None:
        """Seconds until the next start; None: give up. `most` is how often in a row, where fewer than usual are right.

        What could never start will not on a second try. What has run before may only wait for its port, or a node.
        What is lost is started again at once; lost again in a row, after ever longer pauses.
        """
        policy = self._policy
        if life.served:
            self.has_run()
        if life.delivered > self._delivered or life.served >= max(policy.settled_seconds, life.loading):
            self._lost = 0
        self._delivered = max(self._delivered, life.delivered)
        if code == EXIT_CANNOT_START:
            self._refused = [moment for moment in self._refused if now - moment < policy.refused_within_seconds]
            if not self._ran or len(self._refused) >= _least(len(policy.pauses), most):
                return None
            self._refused.append(now)
            return policy.pauses[len(self._refused) - 1]
        self.has_run()
        self._lost += 1
        pauses = (0.0, *policy.pauses)
        return pauses[self._lost - 1] if self._lost <= _least(len(pauses), most) else None

    def has_run(self) -> None:
        """It has come up, so that it may again."""
        self._ran = True
        self._refused.clear()

    @property
    def lost(self) -> int:
        """How often in a row it was lost."""
        return self._lost


def _least(usual: int, most: int | None) -> int:
    return usual if most is None else min(usual, most)


def describe_exit(code: int) -> str:
    """How a process ended, for people."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def python(*arguments: str) -> list[str]:
    """A command for the interpreter that runs this process."""
    return [sys.executable, *arguments]
