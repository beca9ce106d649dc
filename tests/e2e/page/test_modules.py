"""What the page decides without a browser: its modules under node's own test runner."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


def test_the_pure_modules_of_the_page() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node here")
    command = [node, "--test", str(Path(__file__).with_name("modules.test.mjs"))]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout[-6000:]
    assert "# fail 0" in run.stdout
