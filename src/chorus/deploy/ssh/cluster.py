"""A cluster brought up, looked after and taken down from one machine, by SSH. Doing it twice does it once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from chorus.deploy.ssh import package
from chorus.deploy.ssh.connect import open_shell
from chorus.deploy.ssh.hosts import COMMANDS, Host, HostPlan, local_versions, problems
from chorus.deploy.ssh.shell import HostFailed

AGENT_SECONDS = 60.0
AGENT_READY = r"waiting on .* to be let into a cluster|is in the cluster"
COORDINATOR_READY = r"^ready "
FIRST = "coordinator"

Report = Callable[[str], None]


@dataclass(frozen=True)
class Checked:
    """One row of the table that comes before anything is touched."""

    plan: HostPlan
    where: str
    python: str
    problems: tuple[str, ...]


class HostsUnfit(Exception):
    """Some host has a problem; the rows say which and what to do."""

    def __init__(self, rows: Sequence[Checked]) -> None:
        super().__init__("; ".join(f"{row.plan.device_id}: {row.problems[0]}" for row in rows if row.problems))
        self.rows = rows


@dataclass
class Phases:
    """How long each part took."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(time.perf_counter() - started, 3)


@contextlib.asynccontextmanager
async def connected(plans: Sequence[HostPlan], cluster: str) -> AsyncIterator[list[Host]]:
    """Every host with a shell, checked or not; raises HostsUnfit naming all that cannot be reached."""
    opened = await asyncio.gather(*(open_shell(plan.hostname, plan.ssh) for plan in plans), return_exceptions=True)
    hosts = [
        Host(plan, shell, cluster)
        for plan, shell in zip(plans, opened, strict=True)
        if not isinstance(shell, BaseException)
    ]
    try:
        failures = [found for found in opened if isinstance(found, BaseException)]
        unexpected = [failure for failure in failures if not isinstance(failure, HostFailed)]
        if unexpected:
            raise unexpected[0]
        if failures:
            raise HostsUnfit(
                [
                    Checked(plan, "unreachable", "-", (str(found),))
                    if isinstance(found, BaseException)
                    else _fine(plan)
                    for plan, found in zip(plans, opened, strict=True)
                ]
            )
        yield hosts
    finally:
        await asyncio.gather(*(host.shell.close() for host in hosts), return_exceptions=True)


async def check(hosts: Sequence[Host]) -> list[Checked]:
    """A row for every host; raises HostsUnfit with all of them when any has a problem."""
    here = local_versions()

    async def row(host: Host) -> Checked:
        where = type(host.shell).__name__.removesuffix("Shell").lower()
        try:
            facts = await host.check()
        except HostFailed as error:
            return Checked(host.plan, where, "-", (str(error),))
        return Checked(host.plan, where, ".".join(map(str, facts.python)), tuple(problems(host.plan, facts, here)))

    rows = list(await asyncio.gather(*(row(host) for host in hosts)))
    if any(row.problems for row in rows):
        raise HostsUnfit(rows)
    return rows


async def sync(hosts: Sequence[Host], config: bytes) -> list[str]:
    """Our own code and the configuration on every host; answers where something had to be sent."""
    files = package.package_files()
    digest, wheel = package.content_hash(files), package.build_wheel(files)

    async def one(host: Host) -> str | None:
        sent = await host.sync(package.wheel_name(), wheel, digest)
        await host.write("config.json", config)
        return host.plan.device_id if sent else None

    return [name for name in await asyncio.gather(*(one(host) for host in hosts)) if name]


async def start_agents(hosts: Sequence[Host], report: Report) -> None:
    """The first host makes the token; the others get it over SSH and keep it to themselves."""
    token = await _token(hosts[0])

    async def one(host: Host) -> None:
        file = await host.write("token", token.encode())
        plan = host.plan
        arguments = [COMMANDS, "join", "--token-file", file, "--name", plan.device_id, "--no-announce"]
        arguments += ["--listen", f"0.0.0.0:{plan.door_port}", "--port", str(plan.control_port)]
        arguments += ["--log-dir", f"{host.folder}/logs"]
        async for line in host.start("agent", AGENT_READY, arguments, AGENT_SECONDS):
            report(f"{plan.device_id}: {line}")

    await asyncio.gather(*(one(host) for host in hosts[1:]))


async def start_coordinator(hosts: Sequence[Host], report: Report, timeout: float, insecure: bool) -> str:
    """Loads the model over all hosts and opens the API; answers the line that says where."""
    first = hosts[0]
    plan = first.plan
    arguments = ["chorus.cli.serve_cluster", "--config", f"{first.folder}/config.json"]
    arguments += ["--listen", f"0.0.0.0:{plan.door_port}", "--leader-port", str(plan.control_port)]
    arguments += ["--nodes", str(len(hosts) - 1), "--log-dir", f"{first.folder}/logs"]
    arguments += ["--log-file", f"{first.folder}/logs/api_server.log"]
    for host in hosts[1:]:
        arguments += ["--peer", f"{host.plan.hostname}:{host.plan.door_port}"]
    if insecure:
        arguments.append("--insecure")
    last = ""
    async for line in first.start(FIRST, COORDINATOR_READY, arguments, timeout):
        last = line
        report(line)
    return last


async def stop(hosts: Sequence[Host], purge: bool) -> dict[str, dict[str, int]]:
    """The coordinator's host first: it ends its ranks everywhere. Then the agents."""
    ended = {hosts[0].plan.device_id: await hosts[0].stop()}
    others = await asyncio.gather(*(host.stop() for host in hosts[1:]))
    ended |= {host.plan.device_id: found for host, found in zip(hosts[1:], others, strict=True)}
    if purge:
        await asyncio.gather(*(host.purge() for host in hosts))
    return ended


async def _token(host: Host) -> str:
    try:
        return (await host.chorus("token", "show")).strip().splitlines()[-1]
    except HostFailed:
        return (await host.chorus("token", "new")).strip().splitlines()[0]


def _fine(plan: HostPlan) -> Checked:
    return Checked(plan, "ok", "-", ())


def shown_config(settings: dict[str, object]) -> bytes:
    """What the coordinator reads: the settings in force here, without references to files of this machine."""
    cluster = {**settings.get("cluster", {}), "hostfile": None}  # type: ignore[dict-item]
    return json.dumps({**settings, "cluster": {k: v for k, v in cluster.items() if v is not None}}, indent=1).encode()
