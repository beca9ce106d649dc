"""Views that stay: asked for anew in the background, drawn over the whole screen, left with q."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from chorus.errors import ChorusError
from chorus.platform.terminal import harmless

Found = TypeVar("Found")

LOOK_SECONDS = 0.1
"""How soon a key, another size of the terminal or something new is seen."""
CLOCK_SECONDS = 1.0
"""How often it is drawn where nothing is new: the time that it shows goes on."""
_KEYS = re.compile(r"\x1b(?:\[|O)[A-D]|\x1b|[^\x1b]", re.DOTALL)
_NAMES = {"A": "up", "B": "down", "k": "up", "j": "down"}


@dataclass(frozen=True)
class Seen(Generic[Found]):
    """What was found last, and since when nothing newer is."""

    found: Found | None = None
    problem: str = ""
    """Why the last question was not answered; empty where it was."""
    when: float = 0.0
    """When the answer came, by time.monotonic; where none ever did, when it was first asked for."""

    def trouble(self, now: float) -> str:
        """In words, with how long it has lasted; empty where all is well."""
        return f"waiting for {now - self.when:.0f} s: {self.problem}" if self.problem else ""


class Poller(Generic[Found]):
    """Asks again and again, so that whoever draws never waits. What fails is shown, and asked for again."""

    def __init__(self, ask: Callable[[], Found], seconds: float) -> None:
        self._ask = ask
        self._seconds = seconds
        self._soon = threading.Event()
        self.seen: Seen[Found] = Seen(when=time.monotonic())
        # Nobody waits for an answer that is still on its way when the view is left.
        threading.Thread(target=self._run, daemon=True).start()

    def soon(self) -> None:
        """Ask now: something was changed."""
        self._soon.set()

    def _run(self) -> None:
        while True:
            self.seen = look(self._ask, self.seen)
            self._soon.wait(self._seconds)
            self._soon.clear()


def look(ask: Callable[[], Found], before: Seen[Found]) -> Seen[Found]:
    """What there is now; where nobody answers, what there was, and why."""
    try:
        return Seen(ask(), "", time.monotonic())
    except ChorusError as error:
        return Seen(before.found, harmless(str(error)), before.when)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # An answer in another form than ours: a view that watches for days does not end by it.
        return Seen(before.found, f"the answer cannot be read: {harmless(repr(error))}", before.when)
    except Exception as error:  # whatever it is: a view that nobody asks for any more would look as if all were well
        return Seen(before.found, harmless(f"the server cannot be asked: {str(error) or repr(error)}"), before.when)


def watch(
    console: Console,
    poller: Poller[Found],
    draw: Callable[[Seen[Found]], RenderableType],
    press: Callable[[str], bool] = lambda key: False,
) -> None:
    """Draw until q, Escape or Ctrl-C; `press` is given every other key, and says whether it took one of these too."""
    drawn: object = None
    with contextlib.suppress(KeyboardInterrupt), _keys() as read, _screen(console) as live:
        while True:
            keys = read()
            for key in keys:
                if not press(key) and key in ("q", "\x1b"):
                    return
            seen = poller.seen
            state = (seen.when, seen.problem, console.size, int(time.monotonic() / CLOCK_SECONDS))
            if keys or state != drawn:
                drawn = state
                live.update(draw(seen), refresh=True)


@contextlib.contextmanager
def _screen(console: Console) -> Iterator[Live]:
    with Live(Text(""), console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live:
        yield live


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[], list[str]]]:
    """Gives the keys that were pressed, after a moment where none was; nothing of them is shown."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    quiet = termios.tcgetattr(file)
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(file, termios.TCSADRAIN, quiet)

    def read() -> list[str]:
        if not select.select([file], [], [], LOOK_SECONDS)[0]:
            return []
        if not (data := os.read(file, 1024)):
            raise KeyboardInterrupt  # the terminal is gone
        return names_of_keys(data.decode(errors="replace"))

    try:
        yield read
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def names_of_keys(text: str) -> list[str]:
    """up and down for arrows and for k and j, other keys by what they type; other arrows are none."""
    found = (match[0] for match in _KEYS.finditer(text))
    named = (_NAMES.get(key[-1], "" if len(key) > 1 else key) for key in found)
    return [key for key in named if key]


def with_trouble(shown: RenderableType, trouble: str) -> RenderableType:
    """What was found last, below the reason why there is nothing newer."""
    return Group(Text(trouble, "yellow"), shown) if trouble else shown
