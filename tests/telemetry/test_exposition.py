"""Figures as Prometheus reads them."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from chorus.messages.figures import Figure
from chorus.telemetry.metrics import declared
from chorus.telemetry.metrics.answers import AnswerCounts
from chorus.telemetry.metrics.exposition import written

BUILD = Figure(declared.BUILD.name, ("1.2",), 1)


def samples(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_buckets_add_up_from_below() -> None:
    counts = AnswerCounts()
    for choices in (1, 1, 3, 50):
        counts.choices.observe(choices)
    text, _ = written({"tiny": [counts.choices.figure()]}, "")
    name = declared.PARAMS_N.name
    found = samples(text)
    below = {le: found[f"{name}_bucket", (le, "tiny")] for le in ("1.0", "2.0", "5.0", "20.0", "+Inf")}
    assert below == {"1.0": 2, "2.0": 2, "5.0": 3, "20.0": 3, "+Inf": 4}
    assert (found[f"{name}_count", ("tiny",)], found[f"{name}_sum", ("tiny",)]) == (4, 55)


def test_what_is_told_of_one_model_in_two_places_adds_up() -> None:
    waiting = declared.WAITING.name
    text, _ = written({"one": [Figure(waiting, value=2), Figure(waiting, value=3)], "two": [Figure(waiting)]}, "")
    assert samples(text) == {(waiting, ("one",)): 5, (waiting, ("two",)): 0}


def test_names_of_models_are_escaped() -> None:
    name = 'a"b\\c\nd'
    text, _ = written({name: [Figure(declared.RUNNING.name, value=1)]}, "")
    assert samples(text) == {(declared.RUNNING.name, (name,)): 1}


def test_whoever_asks_for_openmetrics_gets_it() -> None:
    told = {"tiny": list(AnswerCounts().figures()), "": [BUILD]}
    text, content_type = written(told, "application/openmetrics-text; version=1.0.0, text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")
    names = {family.name for family in parse_openmetrics(text.decode())}
    assert {"chorus_generation_tokens", "chorus_e2e_request_latency_seconds", "chorus_build_info"} <= names
    plain, content_type = written(told, "text/plain, */*")
    assert content_type.startswith("text/plain; version=0.0.4")
    assert b"chorus_generation_tokens_total" in plain
