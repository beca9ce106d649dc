from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.cases import packed
from benchmarks.plot import HEIGHT, WIDTH, lines, tick_size
from benchmarks.report import Samples

_SPACE = "{http://www.w3.org/2000/svg}"


def points(svg: str) -> list[list[tuple[float, float]]]:
    found = ElementTree.fromstring(svg).findall(f"{_SPACE}polyline")
    return [[tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()] for line in found]


def test_a_larger_figure_stands_higher_and_all_stand_inside() -> None:
    (one, other) = points(lines("a < b", "streams", "tok/s", (1, 2, 4), {"now": [2, 9, 5], "before": [1, 1, 0]}))
    assert [x for x, _ in one] == [x for x, _ in other] == sorted(x for x, _ in one)
    assert one[1][1] < one[2][1] < one[0][1] < other[0][1] < other[2][1]
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in one + other)


@pytest.mark.parametrize(("largest", "tick"), [(6, 1), (7, 2), (85, 20), (0.3, 0.05), (1200, 200)])
def test_ticks_are_few_and_round(largest: float, tick: float) -> None:
    assert tick_size(largest) == pytest.approx(tick)


def test_the_picture_of_packed_products_shows_medians_of_both_sides() -> None:
    samples = Samples()
    for number in packed.STREAMS:
        for side, figures in ((packed.NOW, (9, 30, 10)), (packed.BEFORE, (1, 3, 2))):
            for figure in figures:
                samples.add(packed.throughput(number), "tok/s", side, figure)
    now, before = points(packed.drawn(samples))
    assert len(now) == len(before) == len(packed.STREAMS)
    assert len({y for _, y in now}) == len({y for _, y in before}) == 1
    assert now[0][1] < before[0][1]


def test_what_a_rank_may_hold_follows_from_the_packed_weights() -> None:
    assert packed.allowed_bytes(600_000_000) == pytest.approx(1_030_000_000)
