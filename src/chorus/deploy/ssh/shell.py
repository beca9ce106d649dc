"""Commands on a host: by SSH, or right here where the host is this machine. Everything has a deadline."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from chorus.config.hostfile import split_address
from chorus.config.older_projects import VARIABLES
from chorus.config.settings import known_keys
from chorus.config.variables import key_of
from chorus.errors import ChorusError

COMMAND_SECONDS = 120.0
CACHE = "CHORUS_CACHE"
"""A setting by its other name, which every process of a machine needs."""


class HostFailed(ChorusError):
    """A host could not be reached or a command failed there: names the host and the reason."""


@dataclass(frozen=True)
class CommandResult:
    code: int
    output: str
    errors: str


class Shell(Protocol):
    host: str
    own_python: str | None
    """The interpreter that runs us, where the host is this machine."""

    async def run(self, command: str, data: bytes = b"", timeout: float = COMMAND_SECONDS) -> CommandResult: ...

    def lines(self, command: str, timeout: float) -> AsyncIterator[str]:
        """What a long command prints, line by line; raises HostFailed when it fails."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Login:
    """`user@host:port` as people write it; whatever is left out is ssh's own business."""

    host: str
    user: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Login:
        user, at, rest = text.rpartition("@")
        host, port = split_address(rest)
        return cls(host, user if at else None, port)


class LocalShell:
    def __init__(self, host: str) -> None:
        self.host = host
        self.own_python: str | None = sys.executable

    async def run(self, command: str, data: bytes = b"", timeout: float = COMMAND_SECONDS) -> CommandResult:
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_without_settings(os.environ),
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(data), timeout)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise HostFailed(f"{self.host}: {short(command)} took longer than {timeout:g} s") from None
        return CommandResult(process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace"))

    async def lines(self, command: str, timeout: float) -> AsyncIterator[str]:
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_without_settings(os.environ),
        )
        assert process.stdout is not None
        last = ""
        try:
            async with asyncio.timeout(timeout):
                async for line in process.stdout:
                    last = line.decode(errors="replace").rstrip("\n")
                    yield last
                code = await process.wait()
        except TimeoutError:
            raise HostFailed(f"{self.host}: {short(command)} took longer than {timeout:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code:
            raise HostFailed(f"{self.host}: {last or f'{short(command)} ended with {code}'}")

    async def close(self) -> None:
        return


def _without_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """A host reads the settings in force from a file. Here too: a variable would go over what the command line says."""
    known = {*known_keys()}
    kept = (name for name in variables if name == CACHE or not (name in VARIABLES or key_of(name) in known))
    return {name: variables[name] for name in kept}


async def write_file(shell: Shell, path: str, data: bytes) -> None:
    """Write a file on a host that only its owner can read, aside first and then renamed."""
    quoted, aside = shlex.quote(path), shlex.quote(f"{path}.part")
    done = await shell.run(f"umask 077 && cat > {aside} && mv {aside} {quoted}", data)
    if done.code:
        raise HostFailed(f"{shell.host}: cannot write {path}: {done.errors.strip()}")


def in_sh(command: str) -> str:
    """For hosts where somebody's own shell reads what we write: it may be fish, whose language is another one."""
    return f"/bin/sh -c {shlex.quote(command)}"


def last_line(text: str) -> str:
    """Where the reason of a failure stands, of a traceback too."""
    return (text.strip().splitlines() or [""])[-1]


def short(command: str) -> str:
    return command if len(command) < 80 else f"{command[:77]}..."
