"""A cluster brought up, looked after and taken down from one machine, by SSH. Doing it twice does it once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chorus.cluster.logs import COORDINATOR, device_log
from chorus.config.file import ConfigError
from chorus.config.hostfile import address_refusal
from chorus.config.settings import Settings, path_keys
from chorus.config.sources import find_device
from chorus.deploy.ssh import package
from chorus.deploy.ssh.connect import open_shell
from chorus.deploy.ssh.hosts import COMMANDS, LAUNCH, HostPlan, SshHost, folder_of, local_versions, plan_hosts, problems
from chorus.deploy.ssh.shell import HostFailed, Shell, last_line
from chorus.errors import ChorusError
from chorus.models.catalog import CATALOG
from chorus.security.key_rules import refusal_to_listen
from chorus.security.node_folder import DOOR_PORT, RANK_PORTS

AGENT_SECONDS = 60.0
DOORS_APART = RANK_PORTS + 2
API_LOG = "api_server.log"

Report = Callable[[str], None]


@dataclass(frozen=True)
class Checked:
    """One row of the table that comes before anything is touched."""

    plan: HostPlan
    where: str
    python: str
    problems: tuple[str, ...]


class HostsUnfit(ChorusError):
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


def cluster_name(config: Path) -> str:
    """What the folders of a cluster are called on its hosts: after its file, and after where that lies, so that every
    `hosts.json` is a cluster of its own.
    """
    place = hashlib.sha256(str(config.resolve()).encode()).hexdigest()[:8]
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", config.stem)[:32]
    return f"{plain}-{place}"


@dataclass(frozen=True)
class SshCluster:
    """The devices of a configuration, under the name that their folders on the hosts have."""

    name: str
    settings: Settings

    def plans(self) -> list[HostPlan]:
        if not self.settings.devices:
            raise ConfigError("no devices are given: name the file that lists them with -c FILE, or a hostfile")
        if refusal := address_refusal(self.settings.devices):
            raise ConfigError(f"devices: {refusal}")
        return plan_hosts(self.settings.devices, DOOR_PORT, DOORS_APART)


async def bring_up(
    cluster: SshCluster,
    timeout: float,
    insecure: bool,
    phases: Phases,
    checked: Callable[[Sequence[Checked]], None],
    report: Report,
) -> str:
    """Check every host, give it this Chorus and start it; answers the line that says where the model is served."""
    async with contextlib.AsyncExitStack() as stack:
        with phases.of("connect"):
            hosts = await stack.enter_async_context(connected(cluster.plans(), cluster.name))
        with phases.of("check"):
            checked(await check(hosts))
        with phases.of("sync"):
            sent = await sync(hosts, told_settings(cluster.settings))
            report(f"copied to {', '.join(sent)}" if sent else "every host has this Chorus already")
        with phases.of("agents"):
            await check_keys(hosts[0], cluster.settings.api.host, insecure)
            await start_agents(hosts, report)
        with phases.of("load"):
            ready = await start_coordinator(hosts, report, timeout, insecure)
        await asyncio.gather(*(host.forget_old_code() for host in hosts))
        return ready


@dataclass(frozen=True)
class Ended:
    """What was ended on a host, or why that is not known."""

    device_id: str
    processes: dict[str, int] = field(default_factory=dict)
    problem: str = ""


async def take_down(cluster: SshCluster, purge: bool = False) -> list[Ended]:
    """End everything that was started: the coordinator first, which ends its ranks everywhere, then the agents. A host
    that cannot be reached keeps none of the others from being ended.
    """

    async def one(plan: HostPlan) -> Ended:
        try:
            async with connected([plan], cluster.name) as (host,):
                processes = await host.stop()
                if purge:
                    await host.purge()
        except HostsUnfit as error:
            return Ended(plan.device_id, problem=error.rows[0].problems[0])
        except HostFailed as error:
            return Ended(plan.device_id, problem=str(error).removeprefix(f"{plan.device_id}: "))
        return Ended(plan.device_id, processes)

    first, *others = cluster.plans()
    return [await one(first), *await asyncio.gather(*(one(plan) for plan in others))]


async def run_on_first(cluster: SshCluster, arguments: Sequence[str], timeout: float, write: Report) -> None:
    """Run a `chorus` command where the coordinator is, and pass on what it prints: but for the last line of one that
    fails, which is its error, and ours.
    """
    held: list[str] = []
    async with connected(cluster.plans()[:1], cluster.name) as (host,):
        try:
            async for line in host.chorus_lines(*arguments, timeout=timeout):
                for whole in held:
                    write(whole)
                held = [line]
        except HostFailed as error:
            told = str(error).removeprefix(f"{host.shell.host}: ").removeprefix("error: ")
            raise HostFailed(f"{host.plan.device_id}: {told}") from None
    for whole in held:
        write(whole)


def _log_file(cluster: str, plan: HostPlan) -> str:
    """Where a device keeps its log, below its home: the first one that of the coordinator, with rank 0 and the API."""
    file = API_LOG if plan.rank == 0 else device_log(Path(), plan.device_id).name
    return f"{folder_of(cluster, plan.device_id)}/logs/{file}"


def log_files(cluster: SshCluster, device: str | None = None) -> dict[str, str]:
    """Where each device keeps its log, or one of them, as scp and ssh write it."""
    return {
        plan.device_id: f"{plan.ssh or plan.hostname}:{_log_file(cluster.name, plan)}"
        for plan in _chosen(cluster, device)
    }


def _chosen(cluster: SshCluster, device: str | None) -> list[HostPlan]:
    plans = cluster.plans()
    if device is None:
        return plans
    return [plans[0 if device == COORDINATOR else find_device(cluster.settings, device)[0]]]


async def read_logs(
    cluster: SshCluster,
    device: str | None,
    lines: int,
    follow: bool,
    timeout: float,
    write: Callable[[str, str], None],
) -> dict[str, str]:
    """Pass on the last lines of every device's log, with whose they are; also where nothing runs any more. Answers why
    some could not be read.
    """

    async def one(plan: HostPlan) -> str:
        file = shlex.quote(_log_file(cluster.name, plan))
        tail = f"tail -n {lines}{' -F' if follow else ''}"
        try:
            async with connected([plan], cluster.name) as (host,):
                if (await host.shell.run(f"cd && test -f {file}")).code:
                    return f"there is no log at ~/{_log_file(cluster.name, plan)}: run `chorus up` first"
                async for line in host.shell.lines(f"cd && exec {tail} {file} 2>/dev/null", timeout):
                    write(plan.device_id, line)
        except HostsUnfit as error:
            return error.rows[0].problems[0]
        except HostFailed as error:
            return str(error)
        return ""

    plans = _chosen(cluster, device)
    problems = await asyncio.gather(*(one(plan) for plan in plans))
    return {plan.device_id: problem for plan, problem in zip(plans, problems, strict=True) if problem}


@dataclass(frozen=True)
class HostState:
    """What a host says of itself, or why it says nothing."""

    device_id: str
    host: str
    by: str
    running: dict[str, int] = field(default_factory=dict)
    problem: str = ""


async def look(cluster: SshCluster, timeout: float) -> tuple[dict[str, Any], list[HostState]]:
    """Ask all hosts at once what runs there, and the first for the status of what is served too; one that cannot be
    asked is one line among the others.
    """

    async def one(plan: HostPlan) -> tuple[dict[str, Any], HostState]:
        shown = plan.ssh or plan.hostname
        try:
            async with connected([plan], cluster.name) as (host,):
                status = _status(host, timeout) if plan.rank == 0 else _nothing()
                return await asyncio.gather(status, _state(host, timeout))
        except HostsUnfit as error:
            return {}, HostState(plan.device_id, shown, "unreachable", problem=error.rows[0].problems[0])

    found = await asyncio.gather(*(one(plan) for plan in cluster.plans()))
    return found[0][0], [state for _, state in found]


async def _nothing() -> dict[str, Any]:
    return {}


async def _status(host: SshHost, timeout: float) -> dict[str, Any]:
    try:
        done = await host.ask(COMMANDS, "status", "--json", timeout=timeout)
        if done.code == 0:
            return dict(json.loads(done.output))
        told = last_line(done.errors).removeprefix("error: ") or f"`chorus status` ended with {done.code} there"
    except HostFailed:
        return {}  # stands in the row of this host
    except ValueError:
        told = "`chorus status` answered something else there: run `chorus up` again"
    return {"problems": {host.plan.device_id: told}}


async def _state(host: SshHost, timeout: float) -> HostState:
    plan = host.plan
    state = HostState(plan.device_id, plan.ssh or plan.hostname, kind(host.shell))
    try:
        done = await host.ask(LAUNCH, "running", ".", timeout=timeout)
    except HostFailed as error:
        return replace(state, problem=str(error).removeprefix(f"{plan.device_id}: "))
    if done.code:
        return replace(state, problem=last_line(done.errors) or f"ended with {done.code}")
    try:
        running = {str(name): int(pid) for name, pid in json.loads(last_line(done.output)).items()}
    except (ValueError, AttributeError, TypeError):
        return replace(state, problem="answers something else: run `chorus up` again")
    return replace(state, running=running, problem="" if running else "nothing of this cluster runs: run `chorus up`")


def kind(shell: Shell) -> str:
    """How a host is reached, in a word."""
    return type(shell).__name__.removesuffix("Shell").lower()


@contextlib.asynccontextmanager
async def connected(plans: Sequence[HostPlan], cluster: str) -> AsyncIterator[list[SshHost]]:
    """Open a shell to every host; raises HostsUnfit naming all that cannot be reached."""
    opened = await asyncio.gather(*(open_shell(plan.hostname, plan.ssh) for plan in plans), return_exceptions=True)
    hosts = [
        SshHost(plan, shell, cluster)
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


async def check(hosts: Sequence[SshHost]) -> list[Checked]:
    """A row for every host; raises HostsUnfit with all of them when any has a problem."""
    here = local_versions()

    async def row(host: SshHost) -> Checked:
        where = kind(host.shell)
        try:
            facts = await host.check()
        except HostFailed as error:
            return Checked(host.plan, where, "-", (str(error),))
        return Checked(host.plan, where, ".".join(map(str, facts.python)), tuple(problems(host.plan, facts, here)))

    rows = list(await asyncio.gather(*(row(host) for host in hosts)))
    if any(row.problems for row in rows):
        raise HostsUnfit(rows)
    return rows


async def sync(hosts: Sequence[SshHost], config: bytes) -> list[str]:
    """Put our own code and the configuration on every host; answers where something had to be sent."""
    files = package.package_files()
    digest, wheel = package.content_hash(files), package.build_wheel(files)

    async def one(host: SshHost) -> str | None:
        sent = await host.sync(package.wheel_name(), wheel, digest)
        await host.write("config.json", config)
        return host.plan.device_id if sent else None

    return [name for name in await asyncio.gather(*(one(host) for host in hosts)) if name]


async def check_keys(first: SshHost, host: str, insecure: bool) -> None:
    """Refuse what the coordinator would refuse, before anything is started for it."""
    refusal = refusal_to_listen(host, (), insecure)
    if refusal and not json.loads(last_line(await first.chorus("keys", "list", "--json"))):
        raise HostFailed(f"{first.plan.device_id}: {refusal}")


async def start_agents(hosts: Sequence[SshHost], report: Report) -> None:
    """Start an agent on every host but the first, which makes the token; the others get it over SSH."""
    token = await _token(hosts[0])

    async def one(host: SshHost) -> None:
        file = await host.write("token", token.encode())
        plan = host.plan
        arguments = ["join", "--token-file", file, "--name", plan.device_id, "--no-announce"]
        arguments += ["--listen", f"0.0.0.0:{plan.door_port}", "--port", str(plan.control_port)]
        arguments += ["--log-dir", f"{host.folder}/logs"]
        async for line in host.start("agent", arguments, AGENT_SECONDS):
            report(f"{plan.device_id}: {line}")

    await asyncio.gather(*(one(host) for host in hosts[1:]))


async def start_coordinator(hosts: Sequence[SshHost], report: Report, timeout: float, insecure: bool) -> str:
    """Loads the model over all hosts and opens the API; answers the line that says where."""
    first = hosts[0]
    plan = first.plan
    arguments = ["serve", "--cluster", "--config", f"{first.folder}/config.json"]
    arguments += ["--listen", f"0.0.0.0:{plan.door_port}", "--leader-port", str(plan.control_port)]
    arguments += ["--nodes", str(len(hosts) - 1), "--log-dir", f"{first.folder}/logs"]
    arguments += ["--log-file", f"{first.folder}/logs/{API_LOG}"]
    for host in hosts[1:]:
        arguments += ["--peer", f"{host.plan.hostname}:{host.plan.door_port}"]
    if insecure:
        arguments.append("--insecure")
    async for line in first.start(COORDINATOR, arguments, timeout):
        report(line)
    return await first.ready_line(COORDINATOR)


async def _token(host: SshHost) -> str:
    try:
        return (await host.chorus("token", "show")).strip().splitlines()[-1]
    except HostFailed:
        return (await host.chorus("token", "new")).strip().splitlines()[0]


def _fine(plan: HostPlan) -> Checked:
    return Checked(plan, "ok", "-", ())


def told_settings(settings: Settings) -> bytes:
    """What the coordinator reads: the settings that are given here. It runs in a folder of its own, perhaps on another
    machine: the hostfile's content goes with them, and a path means there what it means here.
    """
    tree = settings.model_dump(mode="json", exclude_unset=True)
    tree.get("cluster", {}).pop("hostfile", None)
    if "model" in tree:
        tree["model"] = _source_elsewhere(settings.model)
    for key in path_keys():
        section, _, name = key.rpartition(".")
        _make_absolute(tree.get(section, {}) if section else tree, name)
        for entry in tree.get("models", ()):
            _make_absolute(entry.get(section, {}), name)
    for entry in tree.get("models", ()):
        entry["source"] = _source_elsewhere(entry["source"])
    return json.dumps(tree, indent=1).encode()


def _source_elsewhere(source: str) -> str:
    return os.path.abspath(source) if source not in CATALOG and Path(source).exists() else source


def _make_absolute(place: dict[str, Any], name: str) -> None:
    if place.get(name) and not place[name].startswith("~"):
        place[name] = os.path.abspath(place[name])
