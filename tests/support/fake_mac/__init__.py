"""A Mac for tests on any system: `FakeMac(folder).environment()` makes a command that is started with it run on a Mac.

Two things make one: chorus.platform's own functions say so (site/sitecustomize.py), and PATH leads to tools that print
what those of a Mac mini print (answers.py). Each call of a tool is noted, one a line.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

import chorus
from tests.support.fake_mac.answers import ANSWERS, PROGRAMS

SITE = Path(__file__).parent / "site"
SOURCES = Path(chorus.__file__).parents[1]
SYSTEM_PATH = "/usr/bin:/bin"


def played(patch: pytest.MonkeyPatch, folder: Path, answers: dict[str, str] | None = None) -> FakeMac:
    """This very process runs on a Mac, until the test is over."""
    mac = FakeMac(folder, answers)
    patch.setattr(platform, "system", lambda: "Darwin")
    patch.setattr(platform, "machine", lambda: "arm64")
    for name in ("HOME", "PATH", "FAKE_MAC"):
        patch.setenv(name, mac.environment()[name])
    return mac


class FakeMac:
    def __init__(self, folder: Path, answers: dict[str, str] | None = None) -> None:
        """`answers` go over those of a Mac mini."""
        self.home = folder / "home"
        self.tools = folder / "tools"
        self.daemons = folder / "LaunchDaemons"
        self._calls = folder / "calls"
        for place in (self.home, self.tools, self.daemons):
            place.mkdir(parents=True)
        for command, answer in {**ANSWERS, **(answers or {})}.items():
            self._answer(command, answer)
        for name, program in PROGRAMS.items():
            self._write(name, program)
        # What `python3` means here: this interpreter, on this Mac even where somebody sets PYTHONPATH anew.
        self._write("python3", f'PYTHONPATH="$PYTHONPATH:{SITE}" exec "{sys.executable}" "$@"')

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CHORUS_", "XDG_"))}
        return {
            **inherited,
            "HOME": str(self.home),
            "PATH": f"{self.tools}:{SYSTEM_PATH}",
            "PYTHONPATH": f"{SITE}{os.pathsep}{SOURCES}",
            "FAKE_MAC": str(self._calls.parent),
            "FAKE_MAC_DAEMONS": str(self.daemons),
            "COLUMNS": "300",
        }

    def calls(self, tool: str = "") -> list[str]:
        """How tools were called, in order; of one alone where it is named."""
        noted = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [call for call in noted if not tool or call.split()[0] == tool]

    def loaded(self) -> list[str]:
        """What launchd runs now."""
        folder = self._calls.parent / "loaded"
        return sorted(file.name for file in folder.iterdir()) if folder.exists() else []

    def _answer(self, command: str, answer: str) -> None:
        tool, _, arguments = command.partition(" ")
        answers = self.tools / "answers" / tool
        answers.mkdir(parents=True, exist_ok=True)
        (answers / f"{arguments.replace('/', '_').replace(' ', '+')}.txt").write_text(answer)
        if not (self.tools / tool).exists():
            self._write(tool, _LOOK_UP)

    def _write(self, name: str, program: str) -> None:
        file = self.tools / name
        note = 'printf "%s\\n" "${0##*/} $*" >> "$FAKE_MAC/calls"' if name != "python3" else ":"
        file.write_text(f"#!/bin/sh\n{note}\n{program}\n")
        file.chmod(0o755)


# The answer lies in a file named after the arguments; what no Mac knows fails as it would there.
_LOOK_UP = """
file="${0%/*}/answers/${0##*/}/$(printf '%s' "$*" | tr '/ ' '_+').txt"
if [ -f "$file" ]; then cat "$file"; exit 0; fi
if [ "${0##*/}" = sysctl ]; then echo "sysctl: unknown oid '$2'" >&2; exit 1; fi
echo "usage: ${0##*/}" >&2
exit 64
"""
