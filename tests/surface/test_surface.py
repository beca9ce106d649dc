"""What others rely on is written down beside this file, so that no change of it goes unseen."""

from __future__ import annotations

import difflib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# Each record, and the libraries that write a part of its words.
RECORDS: dict[str, tuple[str, ...]] = {
    "openapi.json": ("fastapi", "pydantic"),
    "help.txt": ("typer",),
    "config.txt": (),
    "protocols.txt": (),
}
LONGEST_DIFFERENCE = 60


@pytest.fixture(scope="module")
def surface(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("surface")
    run = subprocess.run(
        [sys.executable, "-m", "tests.surface", str(folder)], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    return folder


@pytest.mark.parametrize("name", RECORDS)
def test_the_public_surface_is_the_one_that_is_written_down(name: str, surface: Path) -> None:
    written, found = ((folder / name).read_text(encoding="utf-8").splitlines() for folder in (HERE, surface))
    lines = list(difflib.unified_diff(written, found, f"{name}, written down", f"{name}, found", lineterm="", n=2))
    if not lines:
        return
    if others := not_locked(RECORDS[name]):
        pytest.skip(f"{name} is written down for the versions in requirements-lock.txt; here are {', '.join(others)}")
    if (left_out := len(lines) - LONGEST_DIFFERENCE) > 0:
        lines[LONGEST_DIFFERENCE:] = [f"... and {left_out} more lines"]
    advice = f"{name} has changed. If that is meant: `python -m tests.surface`, and a line in CHANGELOG.md."
    pytest.fail("\n".join([advice, *lines]), pytrace=False)


def not_locked(libraries: tuple[str, ...]) -> list[str]:
    """Those that are installed in another version than the lock's."""
    lock = (ROOT / "requirements-lock.txt").read_text().splitlines()
    installed = [f"{library}=={importlib.metadata.version(library)}" for library in libraries]
    return [library for library in installed if library not in lock]
