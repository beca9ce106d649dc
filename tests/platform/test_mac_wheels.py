"""What a Mac would install and find there, asked of the package index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"

pytestmark = pytest.mark.system


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_everything_that_a_mac_installs_has_a_wheel_there() -> None:
    done = run("mac_dependencies.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_has_no_wheel_is_seen() -> None:
    done = run("mac_dependencies.py", "--platform", "macosx_10_9_x86_64")
    assert done.returncode == 1
    assert "mlx" in done.stderr


def test_the_names_written_down_are_those_of_the_wheel() -> None:
    done = run("mac_names.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
