"""Where MLX keeps what it compiles for a CPU: below the temporary folder, under a name that is the same for every user,
so that whoever comes first owns it and all others fail. Imports no MLX.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from chorus.platform.storage.paths import cache_dir, private_folder

_NAME = "mlx"


def use_own_scratch() -> None:
    """Give this process a temporary folder of its user's own where MLX's is somebody else's."""
    if not _usable(Path(tempfile.gettempdir()) / _NAME):
        os.environ["TMPDIR"] = str(private_folder(cache_dir() / "tmp"))


def _usable(folder: Path) -> bool:
    return not os.path.lexists(folder) or os.access(folder, os.R_OK | os.W_OK | os.X_OK)
