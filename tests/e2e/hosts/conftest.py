from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chorus.models import resolve
from tests.e2e.hosts.cables import MARK, Cables
from tests.e2e.hosts.namespaces import Host, attempt, interpreter, must, three_hosts

SCRIPT = Path(__file__).parents[3] / "scripts" / "system-packages"


@pytest.fixture(scope="session")
def _system() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces and users are made")
    if interpreter() is None:
        pytest.skip(f"{sys.executable} cannot be run by other users, and the system has none of the same version")
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"scripts/system-packages: {done.stderr.strip()[-200:]}")


@pytest.fixture
def hosts(_system: None) -> Iterator[list[Host]]:
    with three_hosts() as made:
        yield made


@pytest.fixture
def model_on_first(hosts: list[Host]) -> str:
    """SmolLM2 in the first user's cache, and nowhere else: the others must get it from there."""
    source = resolve("smollm2-135m").path
    target = hosts[0].home / ".cache" / "chorus" / "models" / "smollm2-135m"
    shutil.copytree(source, target)
    must("chown", "-R", f"{hosts[0].user}:", str(hosts[0].home / ".cache"))
    return "smollm2-135m"


@pytest.fixture
def cables(tmp_path: Path) -> Iterator[Cables]:
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        pytest.skip("needs root on Linux: network namespaces are made")
    with Path("/run/chorus-test-cables.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for host in (1, 2, 3):
            attempt("ip", "netns", "del", f"{MARK}{host}")
        made = Cables(tmp_path)
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(made.remove)
            yield made
