from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.linux("namespaces")
@pytest.mark.parametrize("number", range(2))
def test_of_linux(number):
    pass

def test_of_every_system():
    pass
"""


@pytest.mark.parametrize("name", ["Linux", "Darwin"])
def test_what_only_linux_has_is_skipped_elsewhere_and_counted(tmp_path: Path, name: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(f"from chorus.platform import system\nsystem.name = lambda: {name!r}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.linux", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-W", "ignore", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    told = "2 skipped: they test what only Linux has"
    assert ("3 passed" if name == "Linux" else "1 passed, 2 skipped") in done.stdout, done.stdout + done.stderr
    assert (told in done.stdout) is (name == "Darwin")
