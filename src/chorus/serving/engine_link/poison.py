"""Which request ends the engines that take it: suspected when it stands still, tried alone, refused when it is proved.

An engine that was ended from outside is nobody's fault. One that failed, or ran out of memory, may have done so for one
of its requests: of those that it had taken, a request is suspected whose answer has not grown between two such losses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from chorus.messages.engine import Request
from chorus.messages.poison import Proved
from chorus.platform.process.losses import Cause

_BLAMED = {Cause.FAULT, Cause.MEMORY}


@dataclass(eq=False, slots=True)
class Case:
    """A request that is not over."""

    request: Request
    answered: list[int] = field(default_factory=list)
    """The tokens that came for it so far."""
    taken: bool = False
    """The engine that serves now has accepted it."""
    stuck_at: int = 0
    """How long its answer was when an engine was last lost with it."""
    times: int = 0
    """How many engines were lost while its answer was so long."""
    verdict: str = ""
    """Why it is not sent again."""

    @property
    def suspected(self) -> bool:
        return self.times > 1


class Poison:
    """The requests of one front end, which of them may be sent to the engine now, and those that never may again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._asking: dict[Case, None] = {}
        """Who wants to be sent, in this order."""
        self._tried: Case | None = None
        """Runs alone until its answer grows."""
        self._lost: list[Case] = []
        """Whom engines had taken that are gone, until it is known how those ended."""
        self._proved = Proved(clock)

    def refusal(self, request: Request) -> str:
        """Why a request is not even tried: the same one was proved to end engines not long ago; empty: it is."""
        return self._proved.reason(request)

    def ask(self, case: Case) -> None:
        self._asking[case] = None

    def may_go(self, case: Case) -> bool:
        """A suspect goes alone: while it is tried nobody else is sent, and nobody goes before it."""
        if self._tried is not None:
            return False
        first = next((other for other in self._asking if other.suspected), None)
        return first is None or first is case

    def stop_asking(self, case: Case) -> None:
        self._asking.pop(case, None)

    def go(self, case: Case) -> None:
        if case.suspected:
            self._tried = case

    def grown(self, case: Case) -> None:
        """Its answer is longer than it was when engines were lost with it."""
        case.times = 0
        self._acquit(case)

    def leave(self, case: Case) -> None:
        """It is over, or nobody wants it any more."""
        self._acquit(case)

    def lose(self, case: Case) -> None:
        """Its engine is gone."""
        self._acquit(case)
        if case.taken:
            case.taken = False
            self._lost.append(case)

    def judge(self, cause: str, told: str) -> None:
        """How the engine ended that was lost last; an empty cause: it did not end, or nobody knows."""
        lost, self._lost = self._lost, []
        if cause not in _BLAMED:
            return
        guilty = [case for case in lost if case.suspected]
        for case in lost:
            if case in guilty:
                case.verdict = f"this request ended the engine {case.times + 1} times: {told}"
                self._proved.remember(case.request, case.verdict)
            elif case.times and case.stuck_at == len(case.answered):
                case.times += 1
            else:
                case.stuck_at, case.times = len(case.answered), 1
        if guilty:
            # It was the one: whoever else stood still beside it need not be tried alone for that.
            for case in (*self._asking, *lost):
                case.times = min(case.times, 1)

    def _acquit(self, case: Case) -> None:
        if self._tried is case:
            self._tried = None
