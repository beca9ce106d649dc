from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.cases import growth as case
from benchmarks.cases import roofline as roofline_case
from benchmarks.growth import excess
from benchmarks.plot import lines, stacked
from benchmarks.report import Samples
from benchmarks.roofline import Loaded, Rates, Work, least_seconds
from chorus.planning.facts import read_facts
from chorus.platform.accelerator.dtype import planned_policy
from tests.support.tiny_model import write_tiny_model

SIZES = (256, 512, 1024, 2048, 4096)


def test_a_cost_on_a_line_is_linear_however_large_its_fixed_part() -> None:
    assert excess(SIZES, [100 + 0.01 * size for size in SIZES]) == pytest.approx(1)
    assert excess(SIZES, [50.0] * 5) == 1
    assert excess(SIZES, [50.0, 49.0, 48.0, 47.0, 50.0]) == 1


def test_a_square_is_found_behind_a_fixed_cost_as_large_as_itself() -> None:
    assert excess(SIZES, [50 + 50 * (size / 4096) ** 2 for size in SIZES]) > case.WORSE_THAN_LINEAR


def test_a_jump_before_the_end_is_no_growth() -> None:
    assert excess((1, 2, 4, 8, 16, 32), [50, 55, 60, 100, 130, 240]) < case.WORSE_THAN_LINEAR


def test_pictures_one_below_the_other_keep_their_lines() -> None:
    picture = lines("a", "b", "c", ("x", "y"), {"s": [1, 2]})
    both = ElementTree.fromstring(stacked([picture, picture]))
    inner = both.findall("{http://www.w3.org/2000/svg}svg")
    assert [part.attrib["y"] for part in inner] == ["0", "400"]
    assert all(part.find("{http://www.w3.org/2000/svg}polyline") is not None for part in inner)


def test_a_forward_reads_its_weights_once_and_each_rows_cache(tmp_path: Path) -> None:
    facts = read_facts(write_tiny_model(tmp_path, "llama", vocab_size=512))
    loaded = Loaded(facts, planned_policy("float32"), "float32")
    one, two = loaded.decode(1, 100), loaded.decode(2, 100)
    per_token = sum(layer.cache.per_token for layer in facts.layers)
    assert one.cache == 4 * per_token * 101
    assert (two.cache, two.operations) == (2 * one.cache, 2 * one.operations)
    lookup = 4 * facts.hidden
    assert two.weights - one.weights == lookup
    assert not facts.tied
    products = sum(layer.weights.elements for layer in facts.layers) + facts.head.elements
    assert one.weights - lookup == pytest.approx(4 * products, rel=0.01)
    attention = 2 * per_token * 101 * facts.heads / facts.groups
    assert one.operations == pytest.approx(2 * products + attention)


def test_a_prompt_in_chunks_reads_weights_for_each_and_looks_at_as_many_tokens(tmp_path: Path) -> None:
    facts = read_facts(write_tiny_model(tmp_path, "llama", vocab_size=512))
    loaded = Loaded(facts, planned_policy("float32"), "float32")
    (whole,), parts = loaded.prefill(64, 64), loaded.prefill(64, 16)
    assert len(parts) == 4
    assert sum(parts, Work()).operations == pytest.approx(whole.operations)
    assert sum(parts, Work()).weights > 2 * whole.weights


def test_the_slower_of_memory_and_products_bounds_a_forward() -> None:
    rates = Rates(bandwidth=10, operations=100)
    reading, computing = Work(weights=20, operations=100), Work(weights=10, operations=300)
    assert [rates.least_seconds(work) for work in (reading, computing)] == [2, 3]
    assert least_seconds(rates, [reading, computing]) == 5


def test_the_roofline_has_a_line_for_each_side_and_is_drawn_by_phase() -> None:
    samples = Samples()
    for phase, least in (("prompt", 5.0), ("decode, 1 row", 2.0)):
        for measure in (roofline_case.WEIGHTS, roofline_case.CACHE, roofline_case.ACTIVATIONS):
            samples.add(measure, "GB", phase, 1.0)
        samples.add(roofline_case.OPERATIONS, "Gop", phase, 7.0)
        samples.add(roofline_case.LEAST, "ms", phase, least)
    for side, taken in (("bare loop: prompt", 10.0), ("bare loop: decode, 1 row", 4.0), ("leader: decode, 1 row", 5.0)):
        samples.add(roofline_case.TAKEN, "ms", side, taken)
    roofline_case.add_reached(samples)
    assert samples.figures[roofline_case.REACHED]["leader: decode, 1 row"] == [40.0]
    assert len(roofline_case.table(samples)) == 4
    assert roofline_case.drawn(samples).count("<polyline") == 2
