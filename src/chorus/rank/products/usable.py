"""Whether the kernels work here: tried out once, before anything relies on them."""

from __future__ import annotations

import logging
from functools import cache

import numpy as np

from chorus import platform
from chorus.platform.products import REMEDY, installed

log = logging.getLogger("chorus.rank")

_WIDTH = 32


@cache
def usable() -> bool:
    """Also gives the kernels this process's threads. Where they are installed and do not work, a line says why."""
    if platform.device.backend() != "cpu" or not installed():
        return False
    try:
        _try_out()
    except Exception as error:  # whatever a broken installation raises
        why = str(error).strip().splitlines()
        log.warning("packed products do not work here (%s), so float32 it is; %s", why[0] if why else error, REMEDY)
        return False
    return True


def _try_out() -> None:
    from chorus.rank.products import kernels
    from chorus.rank.products.packing import Packed

    kernels.start(platform.rank_threads())
    ones = Packed(8, _WIDTH, np.full((1, 1, _WIDTH), 129, np.uint8), np.ones((1, 1), np.float32), None)
    (made,) = kernels.linears([kernels.Matrix(ones)])(np.ones((1, _WIDTH), np.float32))
    if not np.allclose(made, _WIDTH, rtol=0.02):
        raise RuntimeError(f"{_WIDTH} times 1 is {float(made[0, 0]):g} there")
