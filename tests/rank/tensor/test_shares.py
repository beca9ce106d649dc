from __future__ import annotations

from itertools import pairwise

import pytest

from chorus.planning.split import SplitError
from chorus.rank.tensor.shares import apportion, default_weights, head_ranges


def test_three_groups_go_two_to_one() -> None:
    assert head_ranges(3, 3, (2, 1)) == [(0, 6), (6, 9)]


def test_weights_are_proportions_of_the_groups() -> None:
    assert head_ranges(8, 4, (3, 1)) == [(0, 24), (24, 32)]
    assert head_ranges(8, 4, (6, 2)) == [(0, 24), (24, 32)]


def test_weights_that_do_not_divide_the_groups_name_weights_that_would() -> None:
    with pytest.raises(SplitError, match=r"weights 2,1 make 3 parts .* 8 key/value groups: weights 5,3 would fit"):
        head_ranges(8, 1, (2, 1))


def test_a_group_is_shared_only_by_ranks_that_each_lie_inside_it() -> None:
    assert head_ranges(1, 6, (1, 1, 1)) == [(0, 2), (2, 4), (4, 6)]
    assert head_ranges(2, 2, (2, 1, 1)) == [(0, 2), (2, 3), (3, 4)]
    with pytest.raises(SplitError, match="would fit"):
        head_ranges(2, 4, (3, 1))


def test_more_ranks_than_groups_can_feed_are_refused() -> None:
    with pytest.raises(SplitError, match="at most 3 ranks, or use --parallel pipeline"):
        default_weights(3, 3, 4)


@pytest.mark.parametrize(
    ("groups", "ranks", "weights"), [(8, 2, (1, 1)), (3, 2, (2, 1)), (8, 3, (3, 3, 2)), (3, 3, (1, 1, 1))]
)
def test_without_weights_whole_groups_are_shared_as_evenly_as_they_can(
    groups: int, ranks: int, weights: tuple[int, ...]
) -> None:
    assert default_weights(groups, 2, ranks) == weights


@pytest.mark.parametrize("weights", [(1, 1), (2, 1), (1, 30), (30, 1), (5, 3, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize(("total", "unit"), [(1536, 64), (1000, 1), (320, 64), (100, 8)])
def test_columns_are_all_given_to_somebody_in_whole_units(total: int, unit: int, weights: tuple[int, ...]) -> None:
    ranges = apportion(total, weights, unit)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == total
    assert all(stop == start for (_, stop), (start, _) in pairwise(ranges))
    assert all(start % unit == 0 and stop > start for start, stop in ranges)
    assert all(
        abs((stop - start) - total * weight / sum(weights)) <= max(2 * unit, total % unit + unit)
        for (start, stop), weight in zip(ranges, weights, strict=True)
    )


def test_fewer_units_than_ranks_are_refused() -> None:
    with pytest.raises(SplitError, match="cannot be shared by 3 ranks"):
        apportion(128, (1, 1, 1), 64)
