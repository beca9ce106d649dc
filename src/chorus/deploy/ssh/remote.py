"""Commands on another host, by SSH; keys, names and jump hosts are as the user's own ssh configuration has them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import asyncssh

from chorus.deploy.ssh.shell import COMMAND_SECONDS, CommandResult, HostFailed, Login, in_sh, short
from chorus.platform import system
from chorus.platform.network import failures

CONNECT_SECONDS = 20.0


class SshShell:
    own_python: str | None = None

    def __init__(self, host: str, connection: asyncssh.SSHClientConnection) -> None:
        self.host = host
        self._connection = connection

    @classmethod
    async def connect(cls, host: str, login: Login) -> SshShell:
        options = {"username": login.user} if login.user else {}
        place = f"{login.user + '@' if login.user else ''}{login.host}{f':{login.port}' if login.port else ''}"
        try:
            connection = await asyncio.wait_for(
                asyncssh.connect(login.host, login.port or (), keepalive_interval=15, **options), CONNECT_SECONDS
            )
        except TimeoutError:
            raise HostFailed(
                f"{place}: no answer to ssh within {CONNECT_SECONDS:g} s: is it switched on, is a firewall in between?"
            ) from None
        except asyncssh.HostKeyNotVerifiable:
            raise HostFailed(f"{place}: its host key is not known here: run `ssh {place}` once and accept it") from None
        except asyncssh.PermissionDenied:
            raise HostFailed(f"{place}: ssh refused the login: {login_remedy(place)}") from None
        except socket.gaierror:
            raise HostFailed(
                f"{place}: there is no host of this name: give its address, or mend ~/.ssh/config"
            ) from None
        except ConnectionRefusedError:
            raise HostFailed(
                f"{place}: nothing answers ssh there: start sshd, on a Mac with System Settings > General > Sharing > "
                "Remote Login"
            ) from None
        except OSError as error:
            raise HostFailed(f"{place}: ssh failed: {failures.reason(error)}") from error
        except asyncssh.Error as error:
            raise HostFailed(f"{place}: ssh failed: {error}") from error
        return cls(host, connection)

    async def run(self, command: str, data: bytes = b"", timeout: float = COMMAND_SECONDS) -> CommandResult:
        try:
            async with asyncio.timeout(timeout):
                process = await self._connection.create_process(in_sh(command), encoding=None)
                # A command that reads nothing, such as one that is not there, may have ended before it is fed.
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(data)
                process.stdin.write_eof()
                done = await process.wait()
        except TimeoutError:
            raise HostFailed(f"{self.host}: {short(command)} took longer than {timeout:g} s") from None
        except (OSError, asyncssh.Error) as error:
            raise HostFailed(f"{self.host}: the ssh connection broke: {error}") from error
        code = done.exit_status if done.exit_status is not None else -1
        return CommandResult(code, _text(done.stdout), _text(done.stderr))

    async def lines(self, command: str, timeout: float) -> AsyncIterator[str]:
        last = ""
        try:
            async with asyncio.timeout(timeout):
                process = await self._connection.create_process(in_sh(f"{command} 2>&1"), stdin=asyncssh.DEVNULL)
                async for line in process.stdout:
                    last = str(line).rstrip("\n")
                    yield last
                done = await process.wait()
        except TimeoutError:
            raise HostFailed(f"{self.host}: {short(command)} took longer than {timeout:g} s") from None
        except (OSError, asyncssh.Error) as error:
            raise HostFailed(f"{self.host}: the ssh connection broke: {error}") from error
        if done.exit_status:
            raise HostFailed(f"{self.host}: {last or f'{short(command)} ended with {done.exit_status}'}")

    async def close(self) -> None:
        self._connection.close()
        await self._connection.wait_closed()


def login_remedy(place: str) -> str:
    """What lets us in; a key with a passphrase is of no use to us before somebody has unlocked it."""
    unlock = "ssh-add --apple-use-keychain" if system.is_mac() else "ssh-add"
    return f"run `ssh-copy-id {place}`, and `{unlock}` if the key has a passphrase"


def _text(data: object) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else str(data or "")
