"""What one front end counts of the answers of a model."""

from __future__ import annotations

from collections.abc import Sequence

from chorus.messages.engine import Request, Timing
from chorus.telemetry.metrics import declared
from chorus.telemetry.metrics.answers import AnswerCounts, RequestMeter
from chorus.telemetry.metrics.declared import Metric


def asked(counts: AnswerCounts, prompts: Sequence[int] = (5,), per_prompt: int = 1) -> RequestMeter:
    requests = [Request("r", (7,) * length, max_tokens=8) for length in prompts for _ in range(per_prompt)]
    return RequestMeter(counts, requests, per_prompt)


def timing(cached: int = 0) -> Timing:
    return Timing(0.25, 0.5, 2.0, prompt_tokens=5, cached_tokens=cached, generated_tokens=3)


def value(counts: AnswerCounts, metric: Metric, *labels: str) -> float:
    (found,) = [each for each in counts.figures() if (each.name, each.labels) == (metric.name, labels)]
    return found.value


def histogram(counts: AnswerCounts, metric: Metric) -> tuple[int, float]:
    """How many, and their sum."""
    (found,) = [each for each in counts.figures() if each.name == metric.name]
    return sum(found.buckets), found.sum


def finished(counts: AnswerCounts) -> dict[str, int]:
    return {reason: count for reason, count in counts.finished.items() if count}


def test_tokens_are_counted_as_they_come_and_one_that_nobody_is_shown_at_the_end() -> None:
    counts = AnswerCounts()
    (answer,) = asked(counts).answers
    for now in (1.0, 2.0, 4.0):
        answer.tokens(1, now)
    assert value(counts, declared.GENERATION_TOKENS) == 3
    answer.end("stop", 4, timing())
    assert value(counts, declared.GENERATION_TOKENS) == 4
    assert finished(counts) == {"stop": 1}
    assert histogram(counts, declared.INTER_TOKEN) == (2, 3.0)
    assert histogram(counts, declared.TIME_PER_TOKEN) == (1, 1.5)
    assert histogram(counts, declared.REQUEST_GENERATION_TOKENS) == (1, 4.0)
    assert histogram(counts, declared.QUEUE) == (1, 0.25)
    assert histogram(counts, declared.PREFILL) == (1, 0.5)
    assert histogram(counts, declared.DECODE) == (1, 2.0)
    assert histogram(counts, declared.INFERENCE) == (1, 2.5)
    assert histogram(counts, declared.PARAMS_MAX_TOKENS) == (1, 8.0)


def test_a_value_is_counted_in_the_first_bucket_that_holds_it() -> None:
    counts = AnswerCounts()
    bounds = declared.INTER_TOKEN.buckets
    for gap in (0.0, bounds[0], bounds[0] + 1e-9, bounds[-1], bounds[-1] + 1):
        counts.inter_token.observe(gap)
    buckets = counts.inter_token.figure().buckets
    assert (buckets[0], buckets[1], buckets[-2], buckets[-1]) == (2, 1, 1, 1)
    assert len(buckets) == len(bounds) + 1


def test_the_first_token_is_timed_from_the_arrival_of_the_request() -> None:
    counts = AnswerCounts()
    request = asked(counts)
    request.arrived = 10.0
    request.answers[0].tokens(1, 13.0)
    assert histogram(counts, declared.FIRST_TOKEN) == (1, 3.0)


def test_a_prompt_that_gets_several_answers_counts_once_as_in_their_usage() -> None:
    counts = AnswerCounts()
    request = asked(counts, prompts=(5, 9), per_prompt=2)
    for answer, cached in zip(request.answers, (2, 4, 0, 8), strict=True):
        answer.prompt_read(timing(cached))
    for answer, length in zip(request.answers, (3, 7, 4, 2), strict=True):
        answer.end("length", length, timing(99))
    assert value(counts, declared.PROMPT_TOKENS) == 5 + 9
    assert value(counts, declared.PROMPT_TOKENS_CACHED) == 2 + 0
    assert finished(counts) == {"length": 4}
    assert histogram(counts, declared.REQUEST_PROMPT_TOKENS) == (4, 28.0)
    assert histogram(counts, declared.PARAMS_N) == (1, 2.0)
    assert histogram(counts, declared.MOST_GENERATION_TOKENS) == (1, 7.0)


def test_of_a_prompt_that_two_engines_have_read_what_both_found_stored_counts_once_its_answer_has_ended() -> None:
    counts = AnswerCounts()
    (answer,) = asked(counts).answers
    answer.prompt_read(timing(cached=4))
    assert value(counts, declared.PROMPT_TOKENS) == 5
    assert value(counts, declared.PROMPT_TOKENS_CACHED) == 0, "its engine may yet be lost, and the next find nothing"
    answer.prompt_read(timing(cached=1))
    answer.end("stop", 4, timing(cached=1))
    assert value(counts, declared.PROMPT_TOKENS) == 5
    assert value(counts, declared.PROMPT_TOKENS_CACHED) == 1


def test_what_was_found_stored_for_somebody_who_leaves_is_counted() -> None:
    counts = AnswerCounts()
    request = asked(counts, per_prompt=2)
    request.answers[0].prompt_read(timing(cached=4))
    request.answers[0].end("stop", 4, timing(cached=4))
    request.close()
    request.close()
    assert value(counts, declared.PROMPT_TOKENS_CACHED) == 4


def test_an_answer_ends_once_and_the_first_reason_stands() -> None:
    counts = AnswerCounts()
    request = asked(counts, per_prompt=2)
    request.answers[0].end("stop", 1, None)
    request.fail(lost=True)
    request.close()
    assert finished(counts) == {"stop": 1, "error": 1}
    assert value(counts, declared.REQUESTS_LOST) == 1


def test_who_leaves_is_counted_and_who_was_refused_is_not() -> None:
    counts = AnswerCounts()
    asked(counts).close()
    refused = asked(counts)
    refused.refuse()
    refused.close()
    failed = asked(counts)
    failed.fail(lost=False)
    failed.close()
    assert finished(counts) == {"abort": 1, "error": 1}
    assert value(counts, declared.REQUESTS_LOST) == 0
