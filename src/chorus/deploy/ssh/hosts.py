"""One host of a cluster that is brought up by SSH: checked, given the code, started, stopped; all in one folder."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chorus.deploy.ssh.shell import COMMAND_SECONDS, CommandResult, HostFailed, Shell, last_line, short, write_file
from chorus.platform.install import install_hint
from chorus.platform.storage.paths import BROUGHT_UP
from chorus.security.node_folder import check_name

MODULES = ("mlx", "mlx_lm", "grpc", "psutil", "cryptography", "zeroconf", "fastapi", "uvicorn", "pydantic_settings")
SAME_VERSION = ("mlx", "mlx-lm")
MIN_PYTHON = (3, 11)
MIN_DISK = 1 << 30
NEWEST_PYTHON = (3, 14)
ANY_PYTHON = "python3"
PYTHON_FOLDERS = ("/opt/homebrew/bin", "/usr/local/bin")
"""Not on the PATH of a command over SSH, where Homebrew and others put what they install."""
COMMANDS = "chorus.cli"
LAUNCH = "chorus.deploy.ssh.launch"
OTHER_DOORS = 4
NEVER_STARTED = 121
"""How a command in a host's folder ends where there is none."""


@dataclass(frozen=True)
class HostPlan:
    """What a device of the configuration means for its host."""

    device_id: str
    hostname: str
    ssh: str | None
    python: str
    """As the configuration names it; empty where it names none and the host has not been looked at yet."""
    rank: int
    door_port: int
    control_port: int
    """The port of its rank, as the configuration says."""

    other_doors: tuple[int, ...] = ()
    """Where its door may be instead, when somebody else has the usual one: another cluster perhaps."""

    @property
    def ports(self) -> list[int]:
        return [self.door_port, self.door_port + 1, self.control_port]

    def with_door(self, recorded: str, taken: Collection[int]) -> HostPlan:
        """The same with the door that it had before, or with the first that is free."""
        if recorded.isdigit():
            return replace(self, door_port=int(recorded))
        doors = (self.door_port, *self.other_doors)
        return replace(self, door_port=next((d for d in doors if not {d, d + 1} & set(taken)), self.door_port))


@dataclass(frozen=True)
class Facts:
    home: str
    python: tuple[int, ...]
    missing: tuple[str, ...]
    versions: dict[str, str | None]
    taken: tuple[int, ...]
    disk_free: int
    writable: bool
    host: str = ""
    running: dict[str, int] = field(default_factory=dict)


def problems(plan: HostPlan, facts: Facts, here: dict[str, str | None]) -> list[str]:
    """Everything that would go wrong on this host, each with its remedy."""
    found = []
    shown = ".".join(map(str, facts.python))
    if facts.python[:2] < MIN_PYTHON:
        found.append(f"{plan.python} is Python {shown}: give `python:` a path to 3.11 or newer")
    if facts.missing:
        found.append(f"{plan.python} lacks {', '.join(facts.missing)}: there, {install_hint(f'{plan.python} -m pip')}")
    for name, version in facts.versions.items():
        if version and here.get(name) and version != here[name]:
            found.append(f"{name} is {version} there and {here[name]} here: install the same on both")
    if facts.taken and not facts.running:
        found.append(f"port {', '.join(map(str, facts.taken))} is taken: stop what uses it, or give another `port:`")
    if facts.disk_free < MIN_DISK:
        found.append(f"only {facts.disk_free / 2**20:.0f} MiB of disk are free in {facts.home}")
    if not facts.writable:
        found.append(f"{facts.home} cannot be written to")
    return found


def find_python() -> str:
    """A command for sh that prints the first interpreter which is new enough, and fails where there is none."""
    oldest, newest = MIN_PYTHON[1], NEWEST_PYTHON[1]
    names = [f"python3.{minor}" for minor in range(newest, oldest - 1, -1)]
    places = [ANY_PYTHON, *names, *(f"{folder}/{name}" for folder in PYTHON_FOLDERS for name in names)]
    new_enough = f"import sys; sys.exit(sys.version_info < {MIN_PYTHON})"
    return (
        f"for p in {' '.join(places)}; do "
        f'"$p" -c {shlex.quote(new_enough)} >/dev/null 2>&1 && echo "$p" && exit 0; done; exit 1'
    )


def local_versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in SAME_VERSION:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def folder_of(cluster: str, device_id: str) -> str:
    """Where a device keeps everything that was put there, below the home."""
    return f"{BROUGHT_UP}/{cluster}/{device_id}"


class SshHost:
    def __init__(self, plan: HostPlan, shell: Shell, cluster: str) -> None:
        self.plan = plan
        self.shell = shell
        self._cluster = cluster
        self.facts: Facts | None = None
        self._app = ""

    @property
    def folder(self) -> str:
        assert self.facts is not None, "check the host first"
        return f"{self.facts.home}/{self._relative_folder}"

    @property
    def _relative_folder(self) -> str:
        return folder_of(self._cluster, self.plan.device_id)

    async def check(self) -> Facts:
        self.plan = replace(self.plan, python=await self._found_python())
        probe = Path(__file__).with_name("probe.py").read_bytes()
        doors = [port for door in self.plan.other_doors for port in (door, door + 1)]
        wanted = {"modules": MODULES, "packages": SAME_VERSION, "ports": [*self.plan.ports, *doors]}
        python = shlex.quote(self.plan.python)
        done = await self.shell.run(f"{python} - {shlex.quote(json.dumps(wanted))}", probe)
        if done.code:
            reason = last_line(done.errors) or f"ended with {done.code}"
            raise HostFailed(
                f"{self.plan.device_id}: {self.plan.python} does not run there: {reason}: give `python:` another path"
            )
        try:
            told = json.loads(last_line(done.output))
            self.facts = Facts(
                told["home"],
                tuple(told["python"]),
                tuple(told["modules"]),
                told["versions"],
                tuple(told["taken"]),
                told["disk_free"],
                told["writable"],
                told["host"],
            )
        except (ValueError, KeyError, TypeError):
            raise HostFailed(
                f"{self.plan.device_id}: {self.plan.python} answers {last_line(done.output)[:80]!r} there, which is no "
                "Python: give `python:` the path of one"
            ) from None
        self._app, door = await self._recorded()
        self.plan = self.plan.with_door(door, self.facts.taken)
        running = await self._running() if self._app else {}
        taken = tuple(port for port in self.facts.taken if port in self.plan.ports)
        self.facts = replace(self.facts, running=running, taken=taken)
        return self.facts

    async def _found_python(self) -> str:
        """The interpreter that the configuration names. Where it names none: on this machine the one that runs us;
        elsewhere `python3` if that is new enough, or else the newest that lies where people install them: the one of
        Apple's tools is 3.9.
        """
        if found := self.plan.python or self.shell.own_python:
            return found
        done = await self.shell.run(find_python())
        return (last_line(done.output) if done.code == 0 else "") or ANY_PYTHON

    async def sync(self, name: str, wheel: bytes, digest: str) -> bool:
        """Give the host our code unless it has it; answers whether anything was sent."""
        app = f"{self.folder}/app/{digest}"
        quoted = shlex.quote(app)
        present = (await self.shell.run(f"test -d {quoted}")).code == 0
        if not present:
            parent = shlex.quote(f"{self.folder}/app")
            await self._must(f"umask 077 && mkdir -p {parent} {shlex.quote(self.folder + '/state')}")
            await write_file(self.shell, f"{self.folder}/app/{name}", wheel)
            python, file = shlex.quote(self.plan.python), shlex.quote(f"{self.folder}/app/{name}")
            await self._must(
                f"rm -rf {quoted}.new && {python} -m zipfile -e {file} {quoted}.new && mv {quoted}.new {quoted}"
            )
        await write_file(self.shell, f"{self.folder}/app/current", digest.encode())
        await write_file(self.shell, f"{self.folder}/python", self.plan.python.encode())
        await write_file(self.shell, f"{self.folder}/door", str(self.plan.door_port).encode())
        self._app = app
        return not present

    async def forget_old_code(self) -> None:
        keep = shlex.quote(Path(self._app).name)
        folder = shlex.quote(f"{self.folder}/app")
        await self._must(f'cd {folder} && for d in */; do [ "$d" = {keep}/ ] || rm -rf "$d"; done')

    async def start(self, name: str, arguments: Sequence[str], timeout: float) -> AsyncIterator[str]:
        """What a `chorus` command says until it is ready; raises HostFailed when it ends instead."""
        command = [self.plan.python, "-m", COMMANDS, *arguments, "--ready-file", f"{self.folder}/{name}.ready"]
        launch = self._python(LAUNCH, "start", self.folder, name, *command)
        async for line in self.shell.lines(launch, timeout):
            yield line

    async def ready_line(self, name: str) -> str:
        """What a process that `start` waited for says of itself."""
        return (await self._must(f"cat {shlex.quote(f'{self.folder}/{name}.ready')}")).strip()

    async def stop(self) -> dict[str, int]:
        """End what we started; answers it by name, nothing where we have never been."""
        done = await self._run_in_folder(LAUNCH, ("stop", "."), COMMAND_SECONDS)
        if done.code == NEVER_STARTED:
            return {}
        if done.code:
            raise HostFailed(f"{self.plan.device_id}: cannot end what runs there: {last_line(done.errors)}")
        return dict(json.loads(last_line(done.output))["ended"])

    async def _running(self) -> dict[str, int]:
        """What runs there, as far as it can be told: where the interpreter of before is gone, nothing is known."""
        done = await self._run_in_folder(LAUNCH, ("running", "."), COMMAND_SECONDS)
        return dict(json.loads(last_line(done.output))) if done.code == 0 else {}

    async def purge(self) -> None:
        """Remove everything that was ever put here."""
        folder = Path(self._relative_folder)
        empty = " && ".join(f"rmdir {shlex.quote(str(parent))}" for parent in list(folder.parents)[:2])
        remove = f'cd "$HOME" && rm -rf {shlex.quote(str(folder))}'
        await self._must(f"{remove} && {{ {{ {empty}; }} 2>/dev/null || true; }}")

    async def chorus(self, *arguments: str) -> str:
        return await self._must(self._python(COMMANDS, *arguments))

    async def ask(self, module: str, *arguments: str, timeout: float) -> CommandResult:
        """Run a module of ours in the folder as `up` left it, in one round trip and without a check before."""
        done = await self._run_in_folder(module, arguments, timeout)
        if done.code == NEVER_STARTED:
            raise HostFailed(f"{self.plan.device_id}: nothing was ever started there: run `chorus up` first")
        return done

    async def _run_in_folder(self, module: str, arguments: Sequence[str], timeout: float) -> CommandResult:
        return await self.shell.run(in_folder(self._relative_folder, module, arguments), timeout=timeout)

    async def chorus_lines(self, *arguments: str, timeout: float) -> AsyncIterator[str]:
        """What a command of ours prints there; like `ask`, without a check before."""
        async for line in self.shell.lines(in_folder(self._relative_folder, COMMANDS, arguments), timeout):
            yield line

    async def write(self, name: str, data: bytes) -> str:
        path = f"{self.folder}/{name}"
        await write_file(self.shell, path, data)
        return path

    def _python(self, module: str, *arguments: str) -> str:
        words = [
            "env",
            f"PYTHONPATH={self._app}",
            f"CHORUS_STATE={self.folder}/state",
            "PYTHONUNBUFFERED=1",
            self.plan.python,
            *("-m", module, *arguments),
        ]
        return " ".join(shlex.quote(word) for word in words)

    async def _recorded(self) -> tuple[str, str]:
        """The code and the door that it had before; empty where there are none."""
        read = " ".join(f'"$(cat {name} 2>/dev/null)"' for name in ("app/current", "door"))
        done = await self.shell.run(f"cd {shlex.quote(self.folder)} 2>/dev/null && printf '%s\\n' {read}")
        digest, door = [*done.output.splitlines(), "", ""][:2]
        return f"{self.folder}/app/{digest}" if digest else "", door.strip()

    async def _must(self, command: str) -> str:
        done = await self.shell.run(command)
        if done.code:
            told = last_line(done.errors) or last_line(done.output) or f"{short(command)} ended with {done.code}"
            raise HostFailed(f"{self.plan.device_id}: {told}")
        return done.output


def in_folder(folder: str, module: str, arguments: Sequence[str]) -> str:
    """A command for sh that runs a module of ours in a folder below the home as `up` left it: with the code and the
    interpreter that were chosen then.
    """
    words = " ".join(shlex.quote(word) for word in ("-m", module, *arguments))
    return (
        f'cd "$HOME"/{shlex.quote(folder)} 2>/dev/null && [ -s app/current ] && [ -s python ] '
        f"|| {{ echo 'nothing was ever started there: run `chorus up` first'; exit {NEVER_STARTED}; }}; "
        'exec env PYTHONPATH="$PWD/app/$(cat app/current)" CHORUS_STATE="$PWD/state" PYTHONUNBUFFERED=1 '
        f'"$(cat python)" {words}'
    )


def plan_hosts(devices: Sequence[Any], first_door: int, doors_apart: int) -> list[HostPlan]:
    """Devices of one host get doors of their own; every other host uses the usual one. Names are those of folders."""
    seen: dict[str, int] = {}
    shared = Counter(device.hostname or "localhost" for device in devices)
    plans = []
    for rank, device in enumerate(devices):
        hostname = device.hostname or "localhost"
        number = seen.get(hostname, 0)
        seen[hostname] = number + 1
        doors = [first_door + (number + turn * shared[hostname]) * doors_apart for turn in range(OTHER_DOORS + 1)]
        plans.append(
            HostPlan(
                check_name(device.device_id),
                hostname,
                device.ssh,
                device.python if "python" in device.model_fields_set else "",
                rank,
                doors[0],
                device.port,
                tuple(doors[1:]),
            )
        )
    return plans
