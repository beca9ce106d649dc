"""Where MLX keeps the kernels that it compiles for an NVIDIA GPU. Imports no MLX.

By itself it keeps them below the temporary folder, under a name that is the same for every user: they go with the next
start of the machine or the container, and a minute of compiling comes back; and whoever made that folder first could
have put anything there for us to run.
"""

from __future__ import annotations

import contextlib
import os
from importlib import metadata

from chorus.platform.storage.paths import cache_dir, private_folder

VARIABLE = "MLX_PTX_CACHE_DIR"


def keep_kernels() -> None:
    """In our cache, apart for each release of MLX. Where the user has named another folder it is that one, and where
    ours cannot be made MLX's own."""
    if VARIABLE in os.environ:
        return
    with contextlib.suppress(OSError, metadata.PackageNotFoundError):
        os.environ[VARIABLE] = str(private_folder(cache_dir() / "kernels" / metadata.version("mlx")))
