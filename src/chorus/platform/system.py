"""Which system this is and what its own tools say: the one place that knows, and the one that tests replace."""

from __future__ import annotations

import platform
import shutil
import subprocess

TOOL_SECONDS = 10.0


def name() -> str:
    """As `platform.system()` spells it: Darwin, Linux."""
    return platform.system()


def is_mac() -> bool:
    return name() == "Darwin"


def is_linux() -> bool:
    return name() == "Linux"


def tool_output(*command: str, seconds: float = TOOL_SECONDS) -> str | None:
    """What a tool printed, errors too; None where there is no such tool. Raises subprocess.TimeoutExpired."""
    program = shutil.which(command[0])
    if program is None:
        return None
    done = subprocess.run(
        [program, *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )
    return done.stdout


def sysctl(key: str) -> str | None:
    """One value of a Mac's kernel; None where it has none of that name or does not answer."""
    try:
        text = tool_output("sysctl", "-n", key)
    except subprocess.TimeoutExpired:
        return None
    return None if text is None or "unknown oid" in text or not text.strip() else text.strip()
