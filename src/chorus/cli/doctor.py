"""`chorus doctor`: what this machine offers, what Chorus chose, and what to do about the rest."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chorus.platform.checks import Finding, can_run, examine
from chorus.platform.probe import run_probe

_MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "missing": ("missing", "bold red")}


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show what Chorus found on this machine, what it chose, and how to fix what is missing.

    Example: chorus doctor --json
    """
    with Console(stderr=True).status("Asking MLX and measuring a matrix product"):
        findings = examine(run_probe())
    ready = can_run(findings)
    if json:
        print(json_format.dumps({"ready": ready, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        console = Console()
        console.print(findings_table(findings))
        console.print(verdict(findings))
    if not ready:
        raise typer.Exit(1)


def findings_table(findings: list[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark, style = _MARKS[finding.status]
        value = Text(finding.value)
        if finding.fix:
            value.append(f"  → {finding.fix}", style="cyan")
        table.add_row(finding.name, Text(mark, style=style), value)
    return table


def verdict(findings: list[Finding]) -> str:
    missing = [finding.name for finding in findings if finding.status == "missing"]
    if missing:
        return f"[bold red]Chorus cannot run here yet:[/] {', '.join(missing)}"
    warnings = sum(finding.status == "warn" for finding in findings)
    if warnings:
        return f"[green]Chorus can run here[/], with {warnings} thing{'s' if warnings > 1 else ''} to improve."
    return "[green]Chorus can run here.[/]"
