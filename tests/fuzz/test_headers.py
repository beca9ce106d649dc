"""What a leader that may be anybody says of its model is compared, or refused; a rank says what differs in one line."""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from chorus.models import ModelError
from chorus.models.headers import MAX_BYTES, ModelHeaders, difference
from tests.fuzz.foreign import at_most, texts, values

MINE = ModelHeaders({"model_type": "llama"}, {"a": "F32 [1]"}, {"a": "0"})
parts = st.dictionaries(texts, values, max_size=3) | st.dictionaries(texts, texts, max_size=3) | values
described = st.fixed_dictionaries({}, optional={"config": parts, "tensors": parts, "samples": parts}) | values


def compared(data: bytes) -> None:
    with suppress(ModelError):
        said = difference(MINE, ModelHeaders.unpacked(data))
        assert said is None or (said.isprintable() and len(said) < 400)


@given(described)
def test_any_values_are_compared_or_refused(said: Any) -> None:
    compared(zlib.compress(json.dumps(said).encode()))


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_compared_or_refused(data: bytes, packed: bool) -> None:
    compared(zlib.compress(data) if packed else data)


def test_little_that_unpacks_to_much_is_refused_for_what_it_may_take() -> None:
    bomb = zlib.compress(b"[" + b" " * (2 * MAX_BYTES))
    with at_most(100):
        compared(bomb)
