"""Where MLX keeps what it compiles for a CPU: below the temporary folder, under a name that is the same for every user,
so that whoever comes first owns it: all others fail, or run what they find there. Imports no MLX.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from chorus.platform.storage.paths import cache_dir, private_folder

_NAME = "mlx"


def use_own_scratch() -> None:
    """Give this process a temporary folder of its user's own where others may write to MLX's."""
    if not _usable(Path(tempfile.gettempdir()) / _NAME):
        os.environ["TMPDIR"] = str(private_folder(cache_dir() / "tmp"))


def _usable(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
