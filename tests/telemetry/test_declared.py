"""Every metric is declared once; docs/metrics.md and the boards know no other."""

from __future__ import annotations

import re

from chorus.telemetry.metrics.declared import METRICS, MODEL, Kind
from tests.telemetry import boards

PAGE = (boards.ROOT / "docs" / "metrics.md").read_text()


def test_the_page_lists_every_metric_with_its_kind_labels_and_meaning_and_no_other() -> None:
    found = re.findall(r"^\| `(chorus_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
    listed = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), told) for name, kind, labels, told in found]
    beside = {name: tuple(label for label in each.labels if label != MODEL) for name, each in METRICS.items()}
    assert listed == [(each.written, each.kind.value, beside[name], each.help) for name, each in METRICS.items()]


def test_whatever_concerns_a_model_says_which() -> None:
    assert {name for name, metric in METRICS.items() if MODEL not in metric.labels} == {"chorus_build_info"}


def test_buckets_rise_and_only_histograms_have_them() -> None:
    for metric in METRICS.values():
        assert bool(metric.buckets) is (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_our_board_asks_for_declared_names_only_and_shows_all_that_only_a_cluster_has() -> None:
    asked = {name for query in boards.our_queries() for name in boards.asked_for(query)}
    assert asked
    assert asked <= boards.scraped_names()
    assert {m.written for m in METRICS.values() if "rank" in m.labels} <= asked


def test_what_vllms_boards_ask_for_is_declared() -> None:
    queries = boards.vllm_queries()
    assert len(queries) > 50
    for query in queries:
        assert boards.asked_for(query), query
        assert boards.asked_for(query) <= boards.scraped_names(), query
        assert "vllm" not in query
    for variable in boards.vllm_variables():
        assert boards.asked_for(variable) <= boards.scraped_names(), variable


def test_the_page_tells_what_to_replace_in_vllms_boards() -> None:
    for theirs, own in boards.REPLACED:
        assert f"`{theirs}`" in PAGE
        assert f"`{own}`" in PAGE
