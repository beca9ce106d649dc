"""What strangers may send or leave in a file, as strategies, and a bound on what reading it may cost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import settings
from hypothesis import strategies as st

ODD_TEXTS = (
    "",
    " ",
    "\0",
    "\n",
    "~",
    "~nobody",
    "..",
    "/",
    "a=b",
    "=",
    "null",
    "\ud800",
    "\U0010ffff",
    "x" * 300,
    "9" * 5000,
)
ODD_NUMBERS = (0, -1, 1, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**40, 0.5, 1e308, float("inf"), float("nan"), True)

texts = st.text(max_size=12) | st.sampled_from(ODD_TEXTS)
scalars = st.none() | st.integers() | st.floats() | texts | st.sampled_from(ODD_NUMBERS)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)

fewer = settings(max_examples=max(10, settings().max_examples // 5))
"""For what takes a while each time."""


@contextmanager
def at_most(megabytes: float) -> Iterator[None]:
    """Fails if Python, or a library that tells Python, held more at any time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
    assert peak <= megabytes, f"{peak:.0f} MB were held at once"
