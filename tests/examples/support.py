"""Worked examples: a patch, applied to a copy of the tree, which must then be as good as the tree itself."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


@functools.cache
def patched(name: str) -> Path:
    """A copy of the sources with the example in it, which ruff and the import contracts find nothing to say about."""
    folder = Path(tempfile.mkdtemp(prefix=f"chorus-example-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    _run(["git", "apply", str(patch_of(name))], folder)
    changed = [str(folder / file) for file in changed_files(name) if file.endswith(".py")]
    for command in (["check"], ["format", "--check"]):
        _run([sys.executable, "-m", "ruff", *command, "--no-cache", "--force-exclude", *changed], folder)
    _run([str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"], folder)
    return folder


def patch_of(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.patch")


def changed_files(name: str) -> list[str]:
    lines = patch_of(name).read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")]


def _run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{' '.join(command[:4])}: {done.stdout}{done.stderr}"
