from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

RunPython = Callable[..., str]


@pytest.fixture(scope="session")
def blas_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One renamed library for all tests, and none in the user's own cache."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run_python(blas_cache: Path) -> RunPython:
    """Run code in a process of its own: a library once loaded stays loaded."""

    def run(code: str, **environment: str) -> str:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CHORUS_")}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**inherited, "CHORUS_CACHE": str(blas_cache), **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
