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
from chorus.cli.own_server import PortOption
from chorus.cluster import status as cluster_status
from chorus.cluster.doctor import resources, software
from chorus.cluster.doctor.ask import examine_cluster
from chorus.cluster.doctor.facts import gather, switched_off
from chorus.cluster.doctor.finding import Finding, look
from chorus.cluster.doctor.hub import Asked, endpoint
from chorus.cluster.doctor.probe import run_probe
from chorus.cluster.doctor.rdma import WantedRdma, rdma_findings
from chorus.cluster.servers import Server, own_servers
from chorus.config.file import ConfigError
from chorus.config.sections import DeviceConfig
from chorus.config.settings import Settings
from chorus.config.sources import load_settings
from chorus.models import resolve
from chorus.platform.accelerator.mlx_import import require_mlx
from chorus.platform.network import rdma
from chorus.transport import catalog

PARITY_SECONDS = 3600
CLUSTER_SECONDS = 600.0
_MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "error": ("error", "bold red")}


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="Only the nodes and links of what is served here; with -c in the cluster of that file, by SSH.",
        ),
    ] = False,
    port: PortOption = None,
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

    Where a server here has nodes, these and the links between them are asked, too. It fails where something is an
    error, not where something could be better.

    Example: chorus doctor --json

    Example: chorus doctor --cluster -c chorus.yaml

    Example: chorus doctor --config hosts.json --rank 1

    Example: chorus doctor --parity smollm2-135m --split 20,7,3
    """
    if parity is not None:
        _prove_parity(parity, split, ranks, json)
        return
    if cluster and config:
        from chorus.cli.up import on_first_host  # SSH and what it needs take a while to import

        options = [*(["--json"] if json else []), *(["--port", str(port)] if port else [])]
        on_first_host(config, ["doctor", "--cluster", *options], CLUSTER_SECONDS)
        return
    findings = _of_nodes(_required(port)) if cluster else [*_of_machine(config, rank), *_of_nodes(_found(port))]
    problem = errors(findings)
    if json:
        data = {"ready": not problem, "findings": [asdict(finding) for finding in findings]}
        print(json_format.dumps(data, indent=2), flush=True)
    else:
        show(findings, Console())
    if problem:
        fail(problem)


def _of_machine(config: Path | None, rank: int | None) -> list[Finding]:
    with Console(stderr=True).status("Asking MLX and Hugging Face, and measuring a matrix product"):
        # It answers, or does not, while MLX is measured.
        asked = None if switched_off(os.environ) else Asked(endpoint(os.environ))
        settings = _settings(config, rank)
        facts = gather(run_probe(), asked, settings)
        # A configuration that cannot be read hides what it wants, not what this machine has.
        wanted = None if isinstance(settings, str) else wanted_of(settings, _own_names())
        seen = rdma.look()
    return [*look((*software.CHECKS, *resources.CHECKS), facts), *rdma_findings(seen, wanted, os.environ)]


def _settings(config: Path | None, rank: int | None) -> Settings | str:
    """Those in force here, or why there are none."""
    try:
        return load_settings(config, {"cluster": {"rank": rank}})
    except ConfigError as error:
        return str(error)


def _found(port: int | None) -> list[Server]:
    """The servers here that have nodes."""
    return [server for server in own_servers() if server.name and port in (None, server.port)]


def _required(port: int | None) -> list[Server]:
    found = _found(port)
    if not found:
        where = f" on port {port}" if port else ""
        start = "start `chorus serve --cluster`, or give -c FILE to ask by SSH"
        fail(f"no server of yours with nodes runs here{where}: {start}")
    return found


def _of_nodes(servers: Sequence[Server]) -> list[Finding]:
    findings: list[Finding] = []
    for server in servers:
        folder = Path(server.folder)
        told = cluster_status.read(folder / cluster_status.FILE_NAME)
        if told is None:
            fix = "try again when it has written what it knows of them: `chorus logs` says what it does"
            findings.append(Finding("nodes", f"{server.url} knows no nodes yet", "warn", fix))
            continue
        with Console(stderr=True).status("Asking the nodes, and measuring the links between them"):
            # Where it has several models, each has a file of its own.
            models = filter(None, map(cluster_status.read, sorted(folder.glob(f"*-{cluster_status.FILE_NAME}"))))
            findings += examine_cluster(told, list(models), Path(server.state))
    return findings


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


def show(findings: Sequence[Finding], console: Console) -> None:
    """This machine first, then each node and each link under its name."""
    for where in dict.fromkeys(finding.where for finding in findings):
        if where:
            console.print(Text(f"\n{where}", style="bold underline"))
        console.print(findings_table([finding for finding in findings if finding.where == where]))
    if not errors(findings):
        console.print(verdict(findings))


def findings_table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark, style = _MARKS[finding.status]
        value = Text(finding.value)
        if finding.fix:
            value.append(f"  → {finding.fix}", style="cyan")
        table.add_row(Text(finding.name), Text(mark, style=style), value)
    return table


def errors(findings: Sequence[Finding]) -> str:
    """What is in the way, in one line; empty where nothing is."""
    found = [finding for finding in findings if finding.status == "error"]
    here = [finding.name for finding in found if not finding.where]
    there = [f"{finding.where} ({finding.name})" for finding in found if finding.where]
    cannot = [f"Chorus cannot run here yet: {', '.join(here)}"] if here else []
    return "; ".join(cannot + ([f"the cluster is not well: {', '.join(there)}"] if there else []))


def verdict(findings: Sequence[Finding]) -> Text:
    """Where there are no errors."""
    well = "Chorus can run here" if any(not finding.where for finding in findings) else "The cluster is well"
    warnings = sum(finding.status == "warn" for finding in findings)
    more = f", with {warnings} thing{'s' if warnings > 1 else ''} to improve" if warnings else ""
    return Text.assemble((well, "green"), f"{more}.")


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
