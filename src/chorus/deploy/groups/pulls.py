"""Models that a server fetches into the store of its machine because somebody has asked it to, by their names."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from chorus.deploy.groups.aside import in_thread
from chorus.errors import ChorusError
from chorus.messages.deploy import PullRow
from chorus.models import Progress
from chorus.models.resolve import fetch_named, is_fetchable
from chorus.models.servable import check_servable

log = logging.getLogger("chorus.models")

MOST_AT_ONCE = 2
ENDED_KEPT = 16
TELL_SECONDS = 0.25
"""A bar needs no more looks than this."""


_BEGINS = Progress("looking for it", 0, None)


class NotPulled(ChorusError):
    """A model is not fetched: says why."""


@dataclass
class _Pull:
    name: str
    started_at: float = field(default_factory=time.time)
    progress: Progress = _BEGINS
    ended: bool = False
    failure: str = ""
    task: asyncio.Task[None] | None = None

    @property
    def row(self) -> PullRow:
        done, total = self.progress.done, self.progress.total or 0
        return PullRow(self.name, self.progress.label, done, total, self.ended, self.failure, self.started_at)


class Pulls:
    """`changed` is called whenever there is something new to show."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._pulls: dict[str, _Pull] = {}

    @property
    def rows(self) -> tuple[PullRow, ...]:
        """Those under way, and the last that have ended, as they began."""
        return tuple(pull.row for pull in self._pulls.values())

    def start(self, name: str) -> PullRow:
        """Fetch it, or what is missing of it, and check its files; raises NotPulled. One that is under way already is
        not begun twice.
        """
        if (known := self._pulls.get(name)) and not known.ended:
            return known.row
        if not is_fetchable(name):
            raise NotPulled(
                f"{name[:200]!r} is neither a name of the catalog nor a Hugging Face id (ORGANISATION/NAME or "
                "ORGANISATION/NAME@REVISION); nothing else is pulled"
            )
        running = [pull.name for pull in self._pulls.values() if not pull.ended]
        if len(running) >= MOST_AT_ONCE:
            raise NotPulled(f"{' and '.join(running)} are being pulled, the most at once: wait for one of them")
        self._pulls.pop(name, None)
        pull = self._pulls[name] = _Pull(name)
        pull.task = asyncio.create_task(self._run(pull), name=f"pull {name}")
        self._forget()
        self._changed()
        return pull.row

    async def _run(self, pull: _Pull) -> None:
        loop, to_be_shown = asyncio.get_running_loop(), False

        def show() -> None:
            nonlocal to_be_shown
            to_be_shown = False
            self._changed()

        def tell(progress: Progress) -> None:
            """Nothing is left out for good: the last report before a silence is shown, too."""
            nonlocal to_be_shown
            pull.progress = progress
            if not to_be_shown:
                to_be_shown = True
                loop.call_soon_threadsafe(loop.call_later, TELL_SECONDS, show)

        try:
            await in_thread(lambda: _fetch(pull.name, tell))
            pull.progress = replace(pull.progress, label="it is here")
            log.info("%s was pulled", pull.name)
        except ChorusError as error:
            pull.failure = str(error)
            log.warning("%s was not pulled: %s", pull.name, error)
        except Exception as error:
            log.exception("%s was not pulled", pull.name)
            pull.failure = f"{type(error).__name__}: {error}"
        finally:
            pull.ended = True
            self._changed()

    def _forget(self) -> None:
        ended = [pull.name for pull in self._pulls.values() if pull.ended]
        for name in ended[: max(0, len(ended) - ENDED_KEPT)]:
            del self._pulls[name]


def _fetch(name: str, report: Callable[[Progress], None]) -> None:
    """What could not be served is refused before its weights are fetched."""
    check_servable(fetch_named(name, report, weights=False))
    fetch_named(name, report)
