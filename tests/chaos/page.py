"""Puts what was measured into docs/reliability.md, between its marks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def write(part: str, lines: Sequence[str]) -> None:
    """`part` names the marks."""
    begin, end = f"<!-- {part}: written by make chaos -->\n", f"<!-- end of {part} -->\n"
    text = "".join(f"{line}\n" for line in lines)
    page, count = re.subn(
        f"(?s){re.escape(begin)}.*?{re.escape(end)}", lambda _: begin + text + end, PAGE.read_text(encoding="utf-8")
    )
    if count != 1:
        raise ValueError(f"{PAGE} has no place for {part}")
    PAGE.write_text(page, encoding="utf-8")
