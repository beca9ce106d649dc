"""When a test fails, the last words of the processes it used are part of the report: a failure explains itself.

Whoever starts a process calls `keep` with the file that its output goes to.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LINES = 200


@dataclass(frozen=True)
class Kept:
    name: str
    path: Path
    process: subprocess.Popen[bytes] | None

    def concerns(self, since: float) -> bool:
        """Written to since then, or of a process that may be silent because it hangs."""
        if self.process is not None and self.process.poll() is None:
            return True
        return any(file.stat().st_mtime >= since for file in self.files())

    def files(self) -> list[Path]:
        return sorted(self.path.glob("*")) if self.path.is_dir() else [self.path] if self.path.is_file() else []


_kept: list[Kept] = []
_started = pytest.StashKey[float]()


def keep(name: str, path: Path, process: subprocess.Popen[bytes] | None = None) -> None:
    """`path`: a file, or a folder of them."""
    _kept.append(Kept(name, path, process))


def last_words(since: float) -> list[tuple[str, str]]:
    """A title and the last lines of every file that concerns a test which began at `since`."""
    return [
        (f"{LINES} last lines of {kept.name} ({file.name})", _tail(file))
        for kept in _kept
        if kept.concerns(since)
        for file in kept.files()
    ]


def _tail(file: Path) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-LINES:])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # A clock of files may be a little behind.
    item.stash[_started] = time.time() - 0.1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, pytest.TestReport]:
    report: pytest.TestReport = yield
    if report.failed and _started in item.stash:
        report.sections += last_words(item.stash[_started])
    return report
