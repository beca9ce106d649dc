"""Which shell leads to a host: this machine's own where the host is this machine, otherwise SSH."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import ipaddress
import socket
from collections.abc import Collection

import psutil

from chorus.deploy.ssh.shell import LocalShell, Login, Shell


def own_addresses() -> frozenset[str]:
    return frozenset(a.address.partition("%")[0] for found in psutil.net_if_addrs().values() for a in found)


def own_names() -> frozenset[str]:
    name = socket.gethostname()
    return frozenset({name.lower(), name.partition(".")[0].lower(), f"{name.partition('.')[0].lower()}.local"})


def is_this_machine(host: str, addresses: Collection[str], names: Collection[str], resolved: Collection[str]) -> bool:
    """Whether an entry of a list of hosts means the machine we are on."""
    plain = host.lower().rstrip(".")
    if plain == "localhost" or plain in names:
        return True
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(plain).is_loopback:
            return True
    return plain in addresses or any(address in addresses for address in resolved)


def resolve(host: str) -> frozenset[str]:
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None))
    except OSError:
        return frozenset()


async def open_shell(host: str, ssh: str | None) -> Shell:
    login = Login.parse(ssh) if ssh else Login(host)
    here = is_this_machine(host, own_addresses(), own_names(), await asyncio.to_thread(resolve, host))
    if here and login.user in (None, getpass.getuser()):
        return LocalShell(host)
    from chorus.deploy.ssh.remote import SshShell  # a large library, which most commands never need

    return await SshShell.connect(host, login)
