"""What differs between systems is known in chorus.platform and nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import chorus

SOURCES = Path(chorus.__file__).parent
FOLDERS = ("/proc", "/sys/", "/dev/shm", "/Library/", "/System/")
NAMES = {
    # Modules of the standard library that say which system this is.
    "sys.platform",
    "os.name",
    "os.uname",
    # What only one system has, or has under another meaning.
    "F_SETSIG",
    "F_FULLFSYNC",
    "F_NOCACHE",
    "O_DIRECT",
    "O_EXLOCK",
    "SO_REUSEPORT",
    "SO_PEERCRED",
    "LOCAL_PEERCRED",
    "RLIMIT_AS",
    "RLIMIT_DATA",
    "RLIMIT_RSS",
    "memfd_create",
    "posix_fadvise",
    "sched_getaffinity",
    "sched_setaffinity",
    "prctl",
    "epoll",
    "kqueue",
    "mac_ver",
}
TOOLS = {"caffeinate", "ifconfig", "ioreg", "launchctl", "loginctl", "networksetup", "sysctl", "systemctl", "vm_stat"}


def outside() -> list[Path]:
    return [file for file in SOURCES.rglob("*.py") if file.relative_to(SOURCES).parts[0] != "platform"]


def borders_crossed(tree: ast.Module) -> list[str]:
    """Every system-specific thing in a module, with its line."""
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if NAMES & {f"{module}.{name}", name}:
                found.append(f"{node.lineno}: {module}.{name}")
            case ast.Attribute(attr=name) if name in NAMES:
                found.append(f"{node.lineno}: {name}")
            case ast.Import(names=names) if any(name.name == "platform" for name in names):
                found.append(f"{node.lineno}: import platform")
            case ast.ImportFrom(module="platform", level=0):
                found.append(f"{node.lineno}: from platform import …")
            case ast.ImportFrom(module=("os" | "sys" | "fcntl" | "select"), names=names) if any(
                {name.name, f"{node.module}.{name.name}"} & NAMES for name in names
            ):
                found.append(f"{node.lineno}: from {node.module} import …")
            case ast.Constant(value=str(text)) if id(node) not in documents:
                if text.startswith(FOLDERS) or text in TOOLS or (text in NAMES and text.isidentifier()):
                    found.append(f"{node.lineno}: {text!r}")
    return found


def test_no_module_outside_asks_a_system_by_itself() -> None:
    crossed = {str(file.relative_to(SOURCES)): borders_crossed(ast.parse(file.read_bytes())) for file in outside()}
    assert {file: found for file, found in crossed.items() if found} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nif sys.platform == 'darwin': pass",
        "import platform",
        "from platform import system",
        "from sys import platform",
        "import os\nos.memfd_create('x')",
        "open('/proc/self/status')",
        "f = f'/proc/{1}/stat'",
        "import fcntl\nfcntl.F_SETSIG",
        "hasattr(os, 'O_DIRECT')",
        "import ctypes\nctypes.CDLL(None).prctl(1, 9)",
        "run(['sysctl', '-n', 'hw.memsize'])",
    ],
)
def test_the_border_is_watched(code: str) -> None:
    assert borders_crossed(ast.parse(code))
