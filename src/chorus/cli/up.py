"""`chorus up`, `down` and `restart`: a whole cluster from one machine, by SSH."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from chorus.cli.output import console, fail
from chorus.config.file import ConfigError
from chorus.config.settings import Settings
from chorus.config.sources import load_settings, without_none
from chorus.deploy.ssh import cluster as ssh
from chorus.deploy.ssh.cluster import Checked, HostsUnfit, Phases
from chorus.deploy.ssh.hosts import Host, HostPlan, plan_hosts
from chorus.deploy.ssh.shell import HostFailed
from chorus.security.node_folder import DOOR_PORT, RANK_PORTS

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="Devices and settings (YAML or JSON).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DOORS_APART = RANK_PORTS + 2

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
    settings = _settings(config, {"model": model, "api": {"port": port, "host": host}})
    phases = Phases()
    ready = _run(_up(settings, _cluster_name(config), phases, timeout, insecure))
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
    settings = _settings(config, {})
    ended = _run(_down(settings, _cluster_name(config), purge))
    if as_json:
        typer.echo(json.dumps(ended))
        return
    for device, processes in ended.items():
        named = ", ".join(f"{name} ({pid})" for name, pid in processes.items())
        typer.echo(f"{device}: {f'ended {named}' if named else 'nothing was running'}")


def restart(
    config: ConfigOption = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback API without a key.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until the model must be ready.")] = 900.0,
) -> None:
    """`down`, then `up`.

    Example: chorus restart -c chorus.yaml
    """
    settings = _settings(config, {})
    _run(_down(settings, _cluster_name(config), purge=False))
    phases = Phases()
    typer.echo(_run(_up(settings, _cluster_name(config), phases, timeout, insecure)))
    typer.echo("  ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.seconds.items()))


def on_first_host(config: Path, arguments: Sequence[str], timeout: float) -> None:
    """Run a command of ours where the coordinator is, and print what it says."""
    settings = _settings(config, {})

    async def run() -> None:
        async with ssh.connected(_plans(settings)[:1], _cluster_name(config)) as hosts:
            await hosts[0].check()
            if not hosts[0].is_synced:
                raise HostFailed(f"{hosts[0].plan.device_id}: nothing was ever started there: run `chorus up` first")
            async for line in hosts[0].chorus_lines(*arguments, timeout=timeout):
                typer.echo(line)

    _run(run())


async def _up(settings: Settings, cluster: str, phases: Phases, timeout: float, insecure: bool) -> str:
    def report(line: str) -> None:
        console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)

    with phases.of("connect"):
        connecting = ssh.connected(_plans(settings), cluster)
        hosts: list[Host] = await connecting.__aenter__()
    try:
        with phases.of("check"):
            console.print(_table(await ssh.check(hosts)))
        with phases.of("sync"):
            sent = await ssh.sync(hosts, ssh.shown_config(settings.model_dump(mode="json")))
            console.print(f"copied to {', '.join(sent)}" if sent else "every host has this Chorus already")
        with phases.of("agents"):
            await ssh.start_agents(hosts, report)
        with phases.of("load"):
            ready = await ssh.start_coordinator(hosts, report, timeout, insecure)
        await asyncio.gather(*(host.forget_old_code() for host in hosts))
        return ready
    finally:
        await connecting.__aexit__(None, None, None)


async def _down(settings: Settings, cluster: str, purge: bool) -> dict[str, dict[str, int]]:
    async with ssh.connected(_plans(settings), cluster) as hosts:
        await asyncio.gather(*(host.check() for host in hosts))
        return await ssh.stop(hosts, purge)


def _plans(settings: Settings) -> list[HostPlan]:
    if not settings.devices:
        raise ConfigError("devices: none are given; expected a list with device_id and hostname, or a hostfile")
    return plan_hosts(settings.devices, DOOR_PORT, DOORS_APART)


def _settings(config: Path | None, overrides: dict[str, Any]) -> Settings:
    try:
        return load_settings(config, without_none(overrides))
    except ConfigError as error:
        fail(str(error))


def _cluster_name(config: Path | None) -> str:
    return config.stem if config else "chorus"


def _run(work: Coroutine[Any, Any, Answer]) -> Answer:
    try:
        return asyncio.run(work)
    except HostsUnfit as error:
        console.print(_table(error.rows))
        fail(f"{sum(bool(row.problems) for row in error.rows)} of {len(error.rows)} hosts are not ready, see above")
    except (HostFailed, ConfigError) as error:
        fail(escape(str(error)))
    except BaseExceptionGroup as group:
        fail(escape("; ".join(str(error) for error in group.exceptions)))


def _table(rows: Sequence[Checked]) -> Table:
    table = Table("rank", "device", "host", "by", "Python", "what is wrong")
    for row in rows:
        plan = row.plan
        wrong = "\n".join(escape(text) for text in row.problems) or "[green]nothing[/]"
        table.add_row(str(plan.rank), plan.device_id, plan.ssh or plan.hostname, row.where, row.python, wrong)
    return table
