"""`chorus doctor`: what this machine offers, what Chorus chose, and what to do about the rest."""

from __future__ import annotations

import json as json_format
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chorus.cli.output import fail
from chorus.cluster.doctor.checks import Finding, can_run, examine, switched_off
from chorus.cluster.doctor.hub import Asked, endpoint
from chorus.cluster.doctor.probe import run_probe
from chorus.cluster.doctor.rdma import WantedRdma, rdma_findings
from chorus.config.file import ConfigError
from chorus.config.sections import DeviceConfig
from chorus.config.settings import Settings
from chorus.config.sources import load_settings
from chorus.models import resolve
from chorus.platform.mlx_import import require_mlx
from chorus.platform.rdma import look
from chorus.transport import catalog

PARITY_SECONDS = 3600
_MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "missing": ("missing", "bold red")}


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    parity: Annotated[
        str | None, typer.Option(help="Prove for this model that stages say what the whole model says.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="With --parity: layers of each rank, e.g. 20,7,3.")] = None,
    ranks: Annotated[int, typer.Option(help="With --parity and no --split: how many even stages.")] = 2,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Settings or a hostfile: check the RDMA devices it names.")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Which rank of the hostfile this machine is.")] = None,
) -> None:
    """Show what Chorus found on this machine, what it chose, and how to fix what is missing.

    Example: chorus doctor --json

    Example: chorus doctor --config hosts.json --rank 1

    Example: chorus doctor --parity smollm2-135m --split 20,7,3
    """
    if parity is not None:
        _prove_parity(parity, split, ranks, json)
        return
    with Console(stderr=True).status("Asking MLX and Hugging Face, and measuring a matrix product"):
        # It answers, or does not, while MLX is measured.
        asked = None if switched_off(os.environ) else Asked(endpoint(os.environ))
        findings = [*examine(run_probe(), asked), *_rdma(config, rank)]
    ready = can_run(findings)
    if json:
        print(json_format.dumps({"ready": ready, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        console = Console()
        console.print(findings_table(findings))
        console.print(verdict(findings))
    if not ready:
        raise typer.Exit(1)


def _rdma(config: Path | None, rank: int | None) -> list[Finding]:
    """What to say about RDMA; a configuration that cannot be read hides what it wants, not what this machine has."""
    try:
        settings = load_settings(config, {"cluster": {"rank": rank}})
    except ConfigError as error:
        return [
            Finding("configuration", str(error), "warn", "chorus config check"),
            *rdma_findings(look(), variables=os.environ),
        ]
    return rdma_findings(look(), wanted_of(settings, _own_names()), os.environ)


def wanted_of(settings: Settings, own_names: set[str]) -> WantedRdma | None:
    """What RDMA needs of this machine; None where another transport is chosen."""
    devices = settings.devices
    if settings.engine.transport != catalog.over_rdma().name:
        return None
    rank = settings.cluster.rank if settings.cluster.rank is not None else _own_rank(devices, own_names)
    own = devices[rank].rdma if rank is not None and rank < len(devices) else ()
    leader = devices[0].hostname if devices else None
    return WantedRdma(
        rank, own, settings.cluster.coordinator or (leader and f"{leader}, at a port that rank 0 chooses")
    )


def _own_rank(devices: Sequence[DeviceConfig], own_names: set[str]) -> int | None:
    ranks = [rank for rank, device in enumerate(devices) if device.hostname in own_names]
    return ranks[0] if len(ranks) == 1 else None


def _own_names() -> set[str]:
    host = socket.gethostname()
    addresses = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    return {host, host.partition(".")[0], f"{host.partition('.')[0]}.local", *addresses}


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


def _prove_parity(model: str, split: str | None, ranks: int, as_json: bool) -> None:
    """Compare in a process of its own: memory is given back, and MLX sees the right BLAS from its start."""
    if split is not None and not all(part.strip().isdigit() for part in split.split(",")):
        fail(f"--split {split}: expected numbers of layers separated by commas, e.g. 20,7,3")
    require_mlx()
    path = resolve(model).path
    command = [sys.executable, "-m", "chorus.rank.parity", str(path), "--ranks", str(ranks)]
    with Console(stderr=True).status(f"Running {model} whole, then in stages"):
        done = subprocess.run(
            [*command, *(["--split", split] if split else [])],
            capture_output=True,
            text=True,
            timeout=PARITY_SECONDS,
            check=False,
        )
    try:
        report = json_format.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        fail(f"the parity run ended with exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    if "error" in report:
        fail(report["error"])
    if as_json:
        print(json_format.dumps(report, indent=2))
    else:
        print(
            f"{model} split {','.join(map(str, report['split']))} ({report['dtype']}): "
            f"{'the same' if report['equal'] else 'DIFFERENT'} {report['tokens']} greedy tokens, "
            f"largest logit difference {report['largest_difference']:.3g}"
        )
    if not report["equal"]:
        raise typer.Exit(1)
