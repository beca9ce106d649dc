"""What MLX compiles for a CPU lies where every user's does: the first one must not stand in the way of the others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534
USE = """
import os, sys
from chorus.platform.cpu.scratch import use_own_scratch
if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
use_own_scratch()
print(os.environ["TMPDIR"])
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder as a machine has it: everybody may enter."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o777)
        yield Path(made)


def used(place: Path, *arguments: str) -> Path:
    environment = {**os.environ, "TMPDIR": str(place), "CHORUS_CACHE": str(place / "cache")}
    command = [sys.executable, "-c", USE, *arguments]
    return Path(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip())


@pytest.mark.parametrize("before", [False, True])
def test_the_usual_folder_is_used_where_it_is_nobodys_or_ours(place: Path, before: bool) -> None:
    if before:
        (place / "mlx").mkdir(mode=0o755)
    assert used(place) == place


def test_what_others_may_write_to_is_not_used(place: Path) -> None:
    """Whatever they put there would be run."""
    (place / "mlx").mkdir()
    (place / "mlx").chmod(0o777)
    assert used(place) == place / "cache" / "tmp"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_nor_is_what_another_user_offers(place: Path) -> None:
    (place / "mlx").mkdir(mode=0o755)
    os.chown(place / "mlx", NOBODY, NOBODY)
    assert used(place) == place / "cache" / "tmp"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_users_folder_is_left_to_them(place: Path) -> None:
    (place / "mlx").mkdir(mode=0o700)
    own = used(place, str(NOBODY))
    assert own == place / "cache" / "tmp"
    assert (own.stat().st_uid, own.stat().st_mode & 0o777) == (NOBODY, 0o700)
