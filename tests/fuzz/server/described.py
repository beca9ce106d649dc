"""Requests as schemathesis makes them from our OpenAPI document, right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core import NotSet
from schemathesis.generation.modes import GenerationMode

_MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


def calls(document: Mapping[str, Any], number: int, start: int) -> list[tuple[str, str, Any]]:
    """Method, path and body of about so many requests, spread evenly over the operations; the same for each `start`."""
    operations = [found.ok() for found in schemathesis.openapi.from_dict(dict(document)).get_all_operations()]
    # An operation with a body has far more to vary than one without.
    shares = {True: 6, False: 1}
    weights = [shares[operation.method.upper() == "POST"] for operation in operations]
    made: list[tuple[str, str, Any]] = []
    for operation, weight in zip(operations, weights, strict=True):
        for mode in _MODES:
            wanted = max(1, number * weight // sum(weights) // len(_MODES))
            made += _of_operation(operation, mode, wanted, start)
    return made


def _of_operation(operation: Any, mode: GenerationMode, number: int, start: int) -> list[tuple[str, str, Any]]:
    made: list[tuple[str, str, Any]] = []

    @seed(start)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def collect(case: Any) -> None:
        made.append(_plain(case))

    # An operation without parameters has no wrong form.
    with suppress(Unsatisfiable):
        collect()
    return made


def _plain(case: Any) -> tuple[str, str, Any]:
    path = case.path
    for name, value in (case.path_parameters or {}).items():
        path = path.replace("{" + name + "}", quote(str(value), safe=""))
    query = urlencode(case.query or {}, doseq=True, errors="replace")
    body = None if isinstance(case.body, NotSet) else case.body
    return case.method.upper(), path + (f"?{query}" if query else ""), body
