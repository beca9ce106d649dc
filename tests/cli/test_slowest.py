from __future__ import annotations

from typing import Any

import pytest

from chorus.cli.status import slowest_text


def told(*computes: float, **changed: Any) -> dict[str, Any]:
    """The status of a pipeline whose ranks have computed for so many of 100 seconds, and waited for the others."""
    ranks = [
        {"rank": number, "node": f"node{number}", "phases": {"compute": seconds, "wait": 100 - seconds, "idle": 900}}
        for number, seconds in enumerate(computes)
    ]
    return {"parallel": "pipeline", "transport": "grpc", "ranks": ranks, **changed}


def test_the_rank_that_computes_longest_makes_the_others_wait() -> None:
    assert slowest_text(told(20, 60, 30)) == (
        "rank 1 (node1) makes the others wait: it computes 60% of the time, the next 30% (`chorus trace`)"
    )


@pytest.mark.parametrize(
    "found",
    [
        told(50, 48),
        told(60),
        told(20, 60, parallel="tensor"),
        told(20, 60, transport="ring"),
        told(0, 0),
        {"ranks": [{"rank": 0}, {"rank": 1}], "parallel": "pipeline", "transport": "grpc"},
        {"ranks": []},
    ],
)
def test_nothing_is_said_where_no_rank_stands_out_or_nobody_could_see_it(found: dict[str, Any]) -> None:
    assert slowest_text(found) == ""
