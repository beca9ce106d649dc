"""A shell on another host, over a real SSH connection to a server in this process."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable

import asyncssh

from chorus.deploy.ssh.remote import SshShell
from chorus.deploy.ssh.shell import CommandResult

Process = asyncssh.SSHServerProcess[bytes]


class Open(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        return False


def run_there(process: Callable[[Process], object], data: bytes, command: str = "anything") -> CommandResult:
    async def there() -> CommandResult:
        key = asyncssh.generate_private_key("ssh-ed25519")
        server = await asyncssh.create_server(
            Open, "127.0.0.1", 0, server_host_keys=[key], process_factory=process, encoding=None
        )
        try:
            async with asyncssh.connect(
                "127.0.0.1", server.get_port(), known_hosts=None, config=None, client_keys=None, username="somebody"
            ) as connection:
                return await SshShell("there", connection).run(command, data, timeout=60)
        finally:
            server.close()

    return asyncio.run(there())


async def says_what_it_reads(process: Process) -> None:
    process.stdout.write(await process.stdin.read())
    process.exit(0)


def is_not_there(process: Process) -> None:
    process.stderr.write(b"sh: no such command\n")
    process.exit(127)


def test_a_command_gets_its_input() -> None:
    assert run_there(says_what_it_reads, b"x" * 500_000) == CommandResult(0, "x" * 500_000, "")


def test_a_command_that_ends_before_it_is_fed_gives_its_own_code_and_words() -> None:
    for _ in range(10):
        assert run_there(is_not_there, b"a program") == CommandResult(127, "", "sh: no such command\n")


def test_commands_are_read_by_sh_whatever_shell_the_user_has() -> None:
    def says_what_it_is(process: Process) -> None:
        process.stdout.write((process.command or "").encode())
        process.exit(0)

    command = 'umask 077 && for d in */; do echo "$d"; done'
    assert shlex.split(run_there(says_what_it_is, b"", command).output) == ["/bin/sh", "-c", command]
