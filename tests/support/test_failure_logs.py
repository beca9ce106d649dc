from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.failure_logs import LINES

TESTS = """
import os, pathlib, subprocess, sys
import pytest
from tests.support.failure_logs import keep

@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    (folder / "silent.log").write_text("of a process that hangs")
    os.utime(folder / "silent.log", (1, 1))
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    keep("silent", folder / "silent.log", process)
    yield
    process.communicate(b"\\n")

def test_first(tmp_path):
    (tmp_path / "old.log").write_text("of an earlier test")
    keep("old", tmp_path / "old.log")
    os.utime(tmp_path / "old.log", (1, 1))

def test_second(shared, tmp_path):
    (tmp_path / "logs").mkdir()
    keep("agent", tmp_path / "logs")
    keep("never written", tmp_path / "nothing.log")
    (tmp_path / "logs" / "rank.log").write_text("\\n".join(f"line {n} of it" for n in range(500)))
    assert False
"""


def test_a_failure_shows_the_logs_of_its_own_processes_and_of_no_others(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.failure_logs", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root), "PYTEST_ADDOPTS": "", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "of a process that hangs" in done.stdout
    assert "rank.log" in done.stdout
    assert done.stdout.count(" of it\n") == LINES
    assert "line 499 of it" in done.stdout
    assert "of an earlier test" not in done.stdout.partition("last lines of")[2]
