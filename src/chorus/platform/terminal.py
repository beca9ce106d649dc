"""Where everything that is not data is shown: standard error, in colour where that is a terminal."""

from __future__ import annotations

from rich.console import Console

console = Console(stderr=True, highlight=False)
