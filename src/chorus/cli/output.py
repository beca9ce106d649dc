"""How commands speak: data to stdout, everything else to stderr, one clear line where they fail."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.markup import escape

from chorus.platform.terminal import console as console
from chorus.platform.terminal import warn as warn


def fail(message: str) -> NoReturn:
    console.print(f"[bold red]error:[/] {escape(message)}", markup=True, soft_wrap=True)
    raise typer.Exit(1)
