from __future__ import annotations

from typing import Any

import jsonschema
import numpy as np
import pytest

from benchmarks.cases.grammar import CITY, DOCUMENTS, ENDLESS, PARIS, allows, percentile


@pytest.mark.parametrize(("schema", "document"), DOCUMENTS)
def test_every_document_is_one_that_its_schema_allows(schema: dict[str, Any], document: Any) -> None:
    jsonschema.validate(document, schema)


def test_no_answer_that_is_measured_can_end_the_endless_schema() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([PARIS] * 100, ENDLESS)
    assert ENDLESS["items"] is CITY


def test_a_mask_holds_one_bit_for_each_token() -> None:
    mask = np.array([1 << 5, -(1 << 31)], dtype=np.int32)
    assert [token for token in range(64) if allows(mask, token)] == [5, 63]


def test_a_percentile_is_one_of_the_figures() -> None:
    figures = [float(number) for number in range(1, 101)]
    assert (percentile(figures, 50), percentile(figures, 99), percentile([7.0], 99)) == (51.0, 100.0, 7.0)
