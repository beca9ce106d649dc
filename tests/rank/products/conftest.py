from __future__ import annotations

import pytest

from chorus.platform.accelerator import device
from chorus.platform.cpu.products import installed
from chorus.rank.products.usable import usable


@pytest.fixture(scope="session", autouse=True)
def the_kernels() -> None:
    """Tried out, and with their threads: as before a rank's first product."""
    if device.backend() != "cpu" or not installed():
        pytest.skip("there are no packed products here")
    assert usable()
