from __future__ import annotations

import pytest

from chorus.bench.figures import Answer, Round, decode_rate, figures, overlaps, percentile, prompt_rate


def answer(*arrivals: float, tokens: int | None = None, prompt: int | None = 10, cached: int | None = 0) -> Answer:
    return Answer(0.0, arrivals, max(arrivals, default=0.0), prompt, tokens or len(arrivals), cached)


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [([], 0.5, None), ([3.0], 0.99, 3.0), ([1, 2, 3, 4], 0.5, 2.5), ([4, 1, 3, 2, 5], 0.95, 4.8), ([1, 2], 1.0, 2)],
)
def test_percentiles_lie_between_values_in_proportion(values: list[float], share: float, found: float | None) -> None:
    assert percentile(values, share) == pytest.approx(found) if found else percentile(values, share) is None


@pytest.mark.parametrize(
    ("spans", "together", "found"),
    [
        ([(0, 4), (1, 3)], 2, [(1, 3)]),
        ([(0, 4), (1, 3)], 1, [(0, 4)]),
        ([(0, 2), (2, 4)], 2, []),
        ([(0, 2), (1, 3), (2, 4)], 2, [(1, 2), (2, 3)]),
        ([(0, 1)], 2, []),
        ([], 1, []),
    ],
)
def test_spans_overlap_where_so_many_are_under_way(
    spans: list[tuple[float, float]], together: int, found: list[tuple[float, float]]
) -> None:
    assert overlaps(spans, together) == found


def test_one_stream_decodes_the_tokens_after_its_first() -> None:
    assert decode_rate([answer(1.0, 1.5, 2.0)], 1) == pytest.approx(2)


def test_a_piece_of_several_tokens_counts_as_several() -> None:
    assert decode_rate([answer(1.0, 2.0, 3.0, tokens=9)], 1) == pytest.approx(4)


def test_only_the_time_in_which_all_decode_counts() -> None:
    early = answer(*(1 + step for step in range(9)))
    late = answer(*(5.5 + step for step in range(9)))
    assert decode_rate([early, late], 2) == pytest.approx(2)
    assert decode_rate([answer(1.0, 2.0), answer(3.0, 4.0)], 2) is None


def test_turns_of_agents_count_whenever_all_agents_decode() -> None:
    turns = [answer(0.0, 1.0, 2.0), answer(4.0, 5.0, 6.0), answer(1.0, 2.0, 3.0, 4.0, 5.0)]
    assert decode_rate(turns, 2) == pytest.approx(2)


@pytest.mark.parametrize("arrivals", [(), (1.0,), (1.0, 1.0)])
def test_an_answer_in_one_piece_has_no_decode_speed(arrivals: tuple[float, ...]) -> None:
    assert decode_rate([answer(*arrivals)], 1) is None


def test_prompts_are_read_until_the_last_first_token_and_cached_tokens_do_not_count() -> None:
    assert prompt_rate([answer(1.0), answer(2.0, cached=4)]) == pytest.approx(8)
    assert prompt_rate([answer(1.0, prompt=None, cached=None)]) is None


def test_figures_take_moments_from_all_rounds_and_the_median_of_rates() -> None:
    rounds = [Round(1, seconds, (answer(0.1 * seconds, 0.2 * seconds, 1.0),)) for seconds in (1.0, 2.0, 3.0)]
    found = figures(rounds)
    assert found.tokens_per_second == pytest.approx(1.5)
    assert found.first_token_seconds == pytest.approx(0.2)
    assert found.longest_pause_seconds == pytest.approx(0.8)
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (10, 0, 3)


def test_nothing_measured_has_no_figures() -> None:
    assert figures([]).first_token_seconds is None
    assert figures([Round(1, 1.0, (answer(),))]).gap_seconds is None
