"""How commands speak: data to stdout, everything else to stderr, one clear line where they fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import typer
from rich.markup import escape

from chorus.platform.terminal import console as console
from chorus.platform.terminal import warn as warn


def tell_problems(problems: Mapping[str, str]) -> None:
    """One line for each of several things that failed; whoever calls says what became of the rest."""
    for name, problem in problems.items():
        console.print(f"[bold red]error:[/] {escape(f'{name}: {problem}')}", markup=True, soft_wrap=True)


def fail(message: str) -> NoReturn:
    console.print(f"[bold red]error:[/] {escape(message)}", markup=True, soft_wrap=True)
    raise typer.Exit(1)
