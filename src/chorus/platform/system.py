"""Which system this is and what its own tools say: the one place that knows, and the one that tests replace."""

from __future__ import annotations

import platform
import shutil
import subprocess

TOOL_SECONDS = 10.0
MAC, LINUX = "Darwin", "Linux"


def name() -> str:
    """As `platform.system()` spells it: Darwin, Linux."""
    return platform.system()


def is_mac() -> bool:
    return name() == MAC


def is_linux() -> bool:
    return name() == LINUX


def machine() -> str:
    """The kind of processor, e.g. arm64 or x86_64."""
    return platform.machine()


def description() -> str:
    """The system, its version and the kind of processor, for people."""
    if is_mac():
        version = ".".join(map(str, macos_version())) or "of unknown version"
        return f"macOS {version} {machine()}"
    return f"{name()} {platform.release()} {machine()}"


def macos_version() -> tuple[int, ...]:
    """Empty where it is unknown. The kernel is asked: `platform.mac_ver()` says 16 on macOS 26 where Python was built
    with an older SDK.
    """
    return parse_version(sysctl("kern.osproductversion") or "")


def parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def tool_output(*command: str, seconds: float = TOOL_SECONDS) -> str | None:
    """What a tool printed, errors too; None where there is no such tool. Raises subprocess.TimeoutExpired."""
    done = run_tool(*command, seconds=seconds)
    return None if done is None else done.stdout


def run_tool(*command: str, seconds: float = TOOL_SECONDS) -> subprocess.CompletedProcess[str] | None:
    """How a tool ended and what it printed, errors too; None where there is no such tool. Raises
    subprocess.TimeoutExpired.
    """
    program = shutil.which(command[0])
    if program is None:
        return None
    return subprocess.run(
        [program, *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )


def told(*command: str) -> str:
    """What a tool printed, for whom it is all the same why it said nothing: it is not there or did not answer."""
    try:
        return tool_output(*command) or ""
    except subprocess.TimeoutExpired:
        return ""


def sysctl(key: str) -> str | None:
    """One value of a Mac's kernel; None where it has none of that name or does not answer."""
    text = told("sysctl", "-n", key).strip()
    return text if text and "unknown oid" not in text else None
