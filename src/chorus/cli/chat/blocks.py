"""Which part of a growing Markdown text is finished: what follows can no longer change how it looks."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_LETTERS = 20_000
"""Of a paragraph: one that is longer is finished in parts, too."""
_FENCE = re.compile(r"\s*(`{3,}|~{3,})(.*)")


@dataclass(frozen=True)
class Block:
    """A piece of a text that is shown by itself."""

    text: str
    goes_on: bool = False
    """It is the rest of the block before it: no blank line comes between."""


def split_finished(growing: Block, most_lines: int) -> tuple[list[Block], Block]:
    """The finished blocks of what grows, and what still does. A block ends at a blank line, if what follows begins at
    the margin (what is indented may belong to a list) and no code fence is open. Code and lists that grow longer than
    `most_lines` are finished in parts, so that what is drawn again and again stays small.
    """
    blocks: list[Block] = []
    lines: list[str] = []
    fence, opening, blank, goes_on = "", "", False, growing.goes_on

    def finish(more: str = "", next_goes_on: bool = False) -> None:
        nonlocal lines, goes_on
        if any(line.strip() for line in lines):
            blocks.append(Block("".join(lines).rstrip("\n") + more, goes_on))
            goes_on = next_goes_on
        lines = []

    for line in growing.text.splitlines(keepends=True):
        ended = line.endswith("\n")
        if not fence and blank and line.strip() and not line[0].isspace():
            finish()
        blank = not line.strip()
        lines.append(line)
        if not ended:
            break
        if found := _FENCE.fullmatch(line.rstrip("\n")):
            mark, info = found.groups()
            if not fence:
                fence, opening = mark, line
            elif mark.startswith(fence) and not info.strip():
                fence = ""
        elif len(lines) > most_lines:
            if fence:
                finish(f"\n{fence}", next_goes_on=True)
                lines = [opening]
            elif _is_item(line):
                lines.pop()
                finish(next_goes_on=True)
                lines = [line]
    rest = "".join(lines)
    if not fence and len(rest) > MOST_LETTERS and (end := rest.rfind(" ")) > 0:
        blocks.append(Block(rest[:end], goes_on))
        rest, goes_on = rest[end + 1 :], True
    return blocks, Block(rest, goes_on)


def _is_item(line: str) -> bool:
    """Whether an entry of a list begins here, at the margin."""
    return re.match(r"([-*+]|\d{1,9}[.)])\s", line) is not None
