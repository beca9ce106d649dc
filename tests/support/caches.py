"""Caches of machines that a test pretends to have."""

from __future__ import annotations

import shutil
from pathlib import Path

from chorus.cluster.profile import PROFILE_FILE
from chorus.platform.paths import cache_dir

# Of whoever runs the tests, not one that a test has set for itself.
_KNOWN = cache_dir()


def cache_of_a_known_machine(folder: Path) -> Path:
    """An empty cache but for what takes seconds to find out and is the same for all here: its speed and its BLAS."""
    folder.mkdir(parents=True, exist_ok=True)
    if (_KNOWN / PROFILE_FILE).is_file():
        shutil.copy(_KNOWN / PROFILE_FILE, folder)
    if (_KNOWN / "blas").is_dir() and not (folder / "blas").exists():
        (folder / "blas").symlink_to(_KNOWN / "blas", target_is_directory=True)
    return folder
