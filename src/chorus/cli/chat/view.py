"""How an answer is drawn while it comes: what is finished is printed once, only the rest is drawn again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import ClassVar, Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Heading, Markdown
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from chorus.cli.chat.answer import Answer, Piece
from chorus.cli.chat.blocks import Block, split_finished

DRAWN_PER_SECOND = 8
CODE_THEME = "ansi_dark"
THOUGHT = "dim italic"
SPARE_LINES = 3
"""Of the screen: what is drawn again must never scroll."""


class _Heading(Heading):
    """At the margin, where the eye is."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Markdown(Markdown):
    elements: ClassVar = {**Markdown.elements, "heading_open": _Heading}


class _Markup:
    """Text of a model as lines, the last so many of them. Addresses are written out: a link that shows another one than
    it opens is a trap. Blank lines around it are left to whoever prints several.
    """

    def __init__(self, text: str, most_lines: int | None = None) -> None:
        self._shown = _Markdown(text, code_theme=CODE_THEME, hyperlinks=False)
        self._most_lines = most_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._shown, options.update(height=None), pad=False)
        blank = [not "".join(segment.text for segment in line).strip() for line in lines]
        begin = next((place for place, empty in enumerate(blank) if not empty), 0)
        end = next((place for place in range(len(blank), 0, -1) if not blank[place - 1]), 0)
        yield from _with_ends(lines[begin:end][-(self._most_lines or len(lines)) :])


def _with_ends(lines: list[list[Segment]]) -> Iterator[Segment]:
    for line in lines:
        yield from line
        yield Segment.line()


class AnswerView:
    """`with AnswerView(console, folded) as view: view.show(piece)…`"""

    def __init__(self, console: Console, folded: bool) -> None:
        self._console = console
        self._folded = folded
        self._began = time.monotonic()
        self._thought: float | None = None
        self._note = "waiting"
        self._thoughts = ""
        self._growing = Block("")
        self._printed = False
        # The view itself is what is drawn, as it is at that moment: what is printed between two drawings draws it too.
        self._live = Live(self, console=console, refresh_per_second=DRAWN_PER_SECOND, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        rest, self._growing = self._growing, Block("")
        thoughts, self._thoughts = self._thoughts, ""
        self._note = ""
        self._live.__exit__(kind, error, trace)
        self._print_thoughts(thoughts)
        self._print(rest)

    def show(self, piece: Piece) -> None:
        if piece.kind == "note":
            self._note = piece.text
        elif piece.kind == "thought":
            self._think(piece.text)
        else:
            self._stop_thinking()
            grown = Block(self._growing.text + piece.text, self._growing.goes_on)
            finished, self._growing = split_finished(grown, self._room)
            for block in finished:
                self._print(block)

    def tell(self, answer: Answer, stopped: bool) -> None:
        """What belongs below a whole answer."""
        for call in answer.calls.values():
            self._console.print(Text(f"calls {call}", "magenta"))
        how = "stopped, " if stopped else ""
        self._console.print(Text(f"{how}{answer.figures()}", "dim"))

    def _think(self, text: str) -> None:
        self._thought = self._thought or time.monotonic()
        self._note = "thinking"
        if self._folded:
            return
        *whole, self._thoughts = (self._thoughts + text).split("\n")
        if whole:
            self._print_thoughts("\n".join(whole))

    def _stop_thinking(self) -> None:
        if self._thought is None:
            return
        if self._folded:
            took = time.monotonic() - self._thought
            self._print_thoughts(f"thought for {took:.1f} s (/thoughts shows it)")
        rest, self._thoughts, self._thought = self._thoughts, "", None
        self._print_thoughts(rest)

    def _print_thoughts(self, text: str) -> None:
        if text.strip():
            self._console.print(Text(text, THOUGHT))
            self._printed = True

    def _print(self, block: Block) -> None:
        if not block.text.strip():
            return
        if self._printed and not block.goes_on:
            self._console.print()
        self._console.print(_Markup(block.text), end="")
        self._printed = True

    @property
    def _room(self) -> int:
        return max(1, self._console.height - SPARE_LINES)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The last lines of what still grows, or that nothing has come yet."""
        if self._growing.text.strip():
            yield _Markup(self._growing.text, self._room)
        elif self._thoughts.strip():
            thoughts = Text(self._thoughts, THOUGHT)
            yield from _with_ends(console.render_lines(thoughts, options.update(height=None), pad=False)[-self._room :])
        elif self._note:
            seconds = time.monotonic() - self._began
            yield Spinner("dots", Text(f"{self._note}, {seconds:.0f} s (Ctrl-C stops it)", "dim"))
