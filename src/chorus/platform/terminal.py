"""Where everything that is not data is shown: standard error, in colour where that is a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

console = Console(stderr=True, highlight=False)


def warn(message: str) -> None:
    """Tell somebody about something that does not keep the command from going on."""
    console.print(f"[yellow]warning:[/] {escape(message)}", soft_wrap=True)
