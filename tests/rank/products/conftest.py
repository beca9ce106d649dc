from __future__ import annotations

import pytest

from chorus.rank.products.usable import usable


@pytest.fixture(scope="session", autouse=True)
def the_kernels() -> None:
    """Tried out, and with their threads: as before a rank's first product."""
    if not usable():
        pytest.skip("packed products do not work here")
