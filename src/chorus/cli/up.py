"""`chorus up`, `down` and `restart`: a whole cluster from one machine, by SSH."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from chorus.cli.output import console, fail, tell_problems
from chorus.cli.own_server import find_own
from chorus.config.sources import configured_file, load_settings, load_told, without_none
from chorus.deploy.control import ask
from chorus.deploy.elsewhere import check_served_over_nodes
from chorus.deploy.handover import START_SECONDS
from chorus.deploy.ssh import cluster as ssh
from chorus.deploy.ssh.cluster import Checked, Ended, HostsUnfit, Phases, SshCluster
from chorus.messages.proto import control_pb2 as wire

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="Devices and settings (YAML or JSON).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

LOOK_SECONDS = 60.0
FOLLOW_SECONDS = 7 * 86400.0
RESTART_SECONDS = START_SECONDS + 30.0

Answer = TypeVar("Answer")


def up(
    config: ConfigOption = None,
    model: Annotated[str | None, typer.Argument(help="Serve this instead of the file's model.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the API (8100).")] = None,
    host: Annotated[str | None, typer.Option(help="Address of the API, on the first device.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback API without a key.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until the model must be ready.")] = 900.0,
    as_json: JsonOption = False,
) -> None:
    """Check the hosts, give them this Chorus, start it there and load the model. Doing it again changes nothing.

    Example: chorus up -c chorus.yaml
    """
    loaded = load_told(config, without_none({"model": model, "api": {"port": port, "host": host}}))
    check_served_over_nodes(loaded, "chorus up")
    cluster = SshCluster(_name(config), loaded.settings)
    ready, phases = _up(cluster, timeout, insecure)
    if as_json:
        typer.echo(json.dumps({"ready": ready, "seconds": phases.seconds}))
        return
    typer.echo(ready)
    typer.echo("  ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.seconds.items()))


def down(
    config: ConfigOption = None,
    purge: Annotated[bool, typer.Option("--purge", help="Also remove what was copied to the hosts.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End everything that `up` started, on every host.

    Example: chorus down -c chorus.yaml
    """
    ended = _run(ssh.take_down(_cluster(config), purge))
    if as_json:
        typer.echo(json.dumps({host.device_id: host.processes for host in ended if not host.problem}))
    else:
        for host in ended:
            named = ", ".join(f"{name} ({pid})" for name, pid in host.processes.items())
            if not host.problem:
                typer.echo(f"{host.device_id}: {f'ended {named}' if named else 'nothing was running'}")
    _fail_for(ended)


def _fail_for(ended: Sequence[Ended]) -> None:
    """One line for each host where it is not known whether everything was ended."""
    if left := {host.device_id: host.problem for host in ended if host.problem}:
        tell_problems(left)
        raise typer.Exit(1)


def restart(
    config: ConfigOption = None,
    front_end: Annotated[
        bool, typer.Option("--front-end", help="Only the process that clients talk to; no stream is lost.")
    ] = False,
    port: Annotated[int | None, typer.Option(help="With --front-end: of the server here on this port.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback API without a key.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until the model must be ready.")] = 900.0,
) -> None:
    """`down`, then `up`; or with --front-end a new front end beside the old one, which finishes its streams.

    Example: chorus restart -c chorus.yaml

    Example: chorus restart --front-end
    """
    if front_end:
        _restart_front_end(config, port)
        return
    if port is not None:
        fail("--port goes with --front-end: without it, everything that the file names is restarted")
    cluster = _cluster(config)
    _fail_for(_run(ssh.take_down(cluster)))
    ready, phases = _up(cluster, timeout, insecure)
    typer.echo(ready)
    typer.echo("  ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.seconds.items()))


def _restart_front_end(config: Path | None, port: int | None) -> None:
    if config:
        on_first_host(config, ["restart", "--front-end", *(["--port", str(port)] if port else [])], RESTART_SECONDS * 2)
        return
    server = find_own(port).control_file
    with console.status("starting a front end"):
        done = asyncio.run(
            ask(server, lambda control: control.RestartFrontEnd(wire.RestartFrontEndRequest(), timeout=RESTART_SECONDS))
        )
    typer.echo(f"process {done.pid} accepts now, process {done.finishing_pid} finishes its streams and ends")


def on_first_host(config: Path, arguments: Sequence[str], timeout: float) -> None:
    """Run a command of ours where the coordinator is, and print what it says."""
    _run(ssh.run_on_first(_cluster(config), arguments, timeout, typer.echo))


def log_files(config: Path, device: str | None) -> dict[str, str]:
    """Where the logs of the devices of a file lie, as scp and ssh write it."""
    return ssh.log_files(_cluster(config), device)


def read_logs(
    config: Path, device: str | None, lines: int, follow: bool, write: Callable[[str, str], None]
) -> dict[str, str]:
    """Read the logs of the devices of a file; answers why some could not be read."""
    return asyncio.run(ssh.read_logs(_cluster(config), device, lines, follow, FOLLOW_SECONDS, write))


def look_at_hosts(config: Path) -> dict[str, Any]:
    """The status of the cluster of a file, asked of all its hosts at once."""
    found, hosts = asyncio.run(ssh.look(_cluster(config), LOOK_SECONDS))
    return {**found, "hosts": [asdict(host) for host in hosts]}


def _cluster(config: Path | None) -> SshCluster:
    return SshCluster(_name(config), load_settings(config))


def _name(config: Path | None) -> str:
    return ssh.cluster_name(config or configured_file() or Path("chorus"))


def _up(cluster: SshCluster, timeout: float, insecure: bool) -> tuple[str, Phases]:
    def checked(rows: Sequence[Checked]) -> None:
        console.print(_table(rows))

    def report(line: str) -> None:
        console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)

    phases = Phases()
    return _run(ssh.bring_up(cluster, timeout, insecure, phases, checked, report)), phases


def _run(work: Coroutine[Any, Any, Answer]) -> Answer:
    try:
        return asyncio.run(work)
    except HostsUnfit as error:
        console.print(_table(error.rows))
        fail(f"{sum(bool(row.problems) for row in error.rows)} of {len(error.rows)} hosts are not ready, see above")


def _table(rows: Sequence[Checked]) -> Table:
    table = Table("rank", "device", "host", "by", "Python", "what is wrong")
    for row in rows:
        plan = row.plan
        wrong = "\n".join(escape(text) for text in row.problems) or "[green]nothing[/]"
        table.add_row(str(plan.rank), plan.device_id, plan.ssh or plan.hostname, row.where, row.python, wrong)
    return table
