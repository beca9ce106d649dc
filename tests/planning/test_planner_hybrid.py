"""What must hold of plans whose stages have several ranks, over random clusters with machines that are alike."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chorus.planning.costs import Links, LinkSpeed, Machine, Workload, predict_pipeline, stage_table
from chorus.planning.facts import ModelFacts
from chorus.planning.hybrid import group_links, group_tables, of_equals, shares_by_weight
from chorus.planning.plan import DoesNotFit, Plan, PlanError
from chorus.planning.planner import plan
from chorus.planning.problem import PlanRequest, Problem
from chorus.planning.tensor import slice_table
from tests.planning.clusters import GB, WORKLOADS, clusters, links, mac, model, models
from tests.planning.test_planner import FIXED, properties, try_plan

HYBRID = PlanRequest(parallel="hybrid")
QUICK = Links(LinkSpeed(latency=1e-5, bandwidth=5e9, all_reduce=1e-5))
STRATEGIES = st.sampled_from(["auto", *FIXED])


@st.composite
def twins(draw: st.DrawFn) -> list[Machine]:
    """Two kinds of machines at most, two or three of each."""
    kinds = draw(clusters(most_nodes=2))
    counts = [draw(st.integers(2, 3)) for _ in kinds]
    alike = [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    return [replace(node, name=f"node{index}") for index, node in enumerate(alike)]


def dividable(facts: ModelFacts) -> ModelFacts:
    return replace(facts, model_type="llama", groups=4)


@properties
@given(models(), twins(), links(), WORKLOADS, STRATEGIES)
def test_every_stage_is_held_once_by_members_whose_shares_add_up_within_limits(
    facts: ModelFacts, nodes: list[Machine], link: Links, work: Workload, strategy: str
) -> None:
    facts = dividable(facts)
    made = try_plan(facts, nodes, link, work, PlanRequest(strategy, parallel="hybrid"))  # type: ignore[arg-type]
    if isinstance(made, PlanError):
        assert "\n" not in str(made)
        assert not isinstance(made, DoesNotFit) or made.missing > 0
        return
    assert made.parallel == "hybrid"
    assert [rank.rank for rank in made.ranks] == list(range(len(made.ranks)))
    assert len(set(made.nodes)) == len(made.ranks) == len(made.split) * made.members
    memory = {node.name: node.memory for node in nodes}
    for rank in made.ranks:
        assert rank.needed_bytes <= rank.memory_bytes == memory[rank.node]
    stages = [made.ranks[first : first + made.members] for first in range(0, len(made.ranks), made.members)]
    for stage in stages:
        assert len({(rank.first_layer, rank.last_layer, rank.policy_name) for rank in stage}) == 1
        assert tuple(rank.share for rank in stage) == made.weights
    assert sum(made.weights) == facts.groups
    held = [range(stage[0].first_layer, stage[0].last_layer + 1) for stage in reversed(stages)]
    assert [layer for run in held for layer in run] == list(range(len(facts.layers)))
    if strategy == "auto":
        assert {node.name for node in nodes} == {*made.nodes, *(node.node for node in made.excluded)}
    else:
        assert made.nodes == tuple(node.name for node in nodes)
    assert Plan.from_json(json.dumps(made.to_json())) == made


def every_hybrid(facts: ModelFacts, nodes: Sequence[Machine], link: Links, work: Workload) -> Iterator[float]:
    tables = [stage_table(facts, node, work) for node in nodes]
    layers = len(facts.layers)
    for members in range(2, min(len(nodes) // 2, facts.groups) + 1):
        shares = shares_by_weight(facts, (1,) * members)
        groups = group_tables(Problem(facts, nodes, link, work), of_equals(tables, members, None), shares)
        for count in range(2, min(len(groups), layers) + 1):
            for stages in permutations(groups, count):
                between = group_links(stages, link)
                for cut in combinations(range(1, layers), count - 1):
                    bounds = (0, *cut, layers)
                    if all(stage.fits[run] for stage, run in zip(stages, pairwise(bounds), strict=True)):
                        yield predict_pipeline(facts, stages, between, work, bounds).request_seconds


@settings(properties, max_examples=40)
@given(models(most_layers=5), twins(), links(), WORKLOADS)
def test_a_hybrid_plan_is_the_best_of_all_that_equal_machines_allow(
    facts: ModelFacts, nodes: list[Machine], link: Links, work: Workload
) -> None:
    facts = dividable(facts)
    best = min(every_hybrid(facts, nodes, link, work), default=None)
    made = try_plan(facts, nodes, link, work, HYBRID)
    if best is None:
        assert isinstance(made, PlanError)
    else:
        assert isinstance(made, Plan)
        assert made.prediction.request_seconds == pytest.approx(best, rel=1e-6)


@properties
@given(models(), twins(), links(), WORKLOADS)
def test_auto_takes_a_hybrid_over_mpi_alone_and_only_where_it_is_quickest(
    facts: ModelFacts, nodes: list[Machine], link: Links, work: Workload
) -> None:
    facts = dividable(facts)
    hybrid, plain, mpi = (
        try_plan(facts, nodes, link, work, wish) for wish in (HYBRID, PlanRequest(), PlanRequest(transport="mpi"))
    )
    times = [made.prediction.request_seconds for made in (hybrid, plain) if isinstance(made, Plan)]
    assert not isinstance(plain, Plan) or plain.parallel != "hybrid"
    assert isinstance(mpi, Plan) == bool(times)
    if isinstance(mpi, Plan):
        assert mpi.prediction.request_seconds == pytest.approx(min(times), rel=1e-6)


@properties
@given(models(), twins(), links(), WORKLOADS, st.randoms(use_true_random=False))
def test_the_order_in_which_nodes_are_named_does_not_change_a_hybrid(
    facts: ModelFacts, nodes: list[Machine], link: Links, work: Workload, chance: object
) -> None:
    shuffled = list(nodes)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = (try_plan(dividable(facts), some, link, work, HYBRID) for some in (nodes, shuffled))
    if isinstance(one, Plan):
        assert isinstance(other, Plan)
        assert (one.ranks, one.prediction) == (other.ranks, other.prediction)
    else:
        assert str(one) == str(other)


@properties
@given(models(), clusters(most_nodes=1), WORKLOADS, st.integers(1, 3))
def test_a_member_of_a_group_that_holds_all_layers_costs_what_tensor_parallelism_says(
    facts: ModelFacts, nodes: list[Machine], work: Workload, share: int
) -> None:
    facts, pair = dividable(facts), [nodes[0], replace(nodes[0], name="other")]
    tables = [stage_table(facts, node, work) for node in pair]
    (group,) = group_tables(Problem(facts, pair, QUICK, work), [tables], (share, facts.groups - share))
    for member, whole, own in zip(group.members, tables, group.shares, strict=True):
        alone = slice_table(facts, whole, work)
        if alone.unpacked[own] == member.unpacked[0, -1]:
            assert member.weights[0, -1] == pytest.approx(alone.weights[own], rel=1e-6)
            assert member.decode[0, -1] == pytest.approx(alone.decode[own], rel=1e-6)
            assert member.prefill[0, -1] == pytest.approx(alone.prefill[own], rel=1e-6)


def test_four_equal_machines_with_quick_sums_make_two_stages_of_two() -> None:
    nodes = [mac(f"mac{index}", 24, 30) for index in range(4)]
    made = plan(model(60), nodes, QUICK, Workload(), HYBRID)
    assert (made.parallel, made.members, made.weights) == ("hybrid", 2, (4, 4))
    assert sum(made.split) == 60
    assert str(made).startswith("hybrid: rank 0 mac")
    assert "weight 4" in str(made)
    assert plan(model(60), nodes, QUICK, Workload(), PlanRequest(transport="mpi")).parallel in ("hybrid", "tensor")


def test_a_split_and_weights_that_were_laid_down_are_kept() -> None:
    nodes = [mac(f"mac{index}", 48, 30) for index in range(4)]
    made = plan(
        model(30), nodes, QUICK, Workload(), PlanRequest("custom", layers=(20, 10), weights=(3, 1), parallel="hybrid")
    )
    assert (made.split, made.weights, made.nodes) == ((20, 10), (6, 2), ("mac0", "mac1", "mac2", "mac3"))
    assert [(rank.first_layer, rank.share) for rank in made.ranks] == [(10, 6), (10, 2), (0, 6), (0, 2)]
    # Embedding and head are held in full by every member of the first and the last stage.
    assert made.ranks[1].weight_bytes == 20 * 400 * 10**6 * 2 // 8 + 300 * 10**6


def test_machines_without_equals_are_left_out_with_that_reason() -> None:
    nodes = [*(mac(f"mac{index}", 24, 30) for index in range(4)), mac("odd", 64, 60)]
    made = plan(model(60), nodes, QUICK, Workload(), HYBRID)
    assert [node.node for node in made.excluded] == ["odd"]
    assert "no equals" in made.excluded[0].reason


@pytest.mark.parametrize(
    ("wish", "count", "message"),
    [
        (HYBRID, 3, "parallel hybrid cannot divide 3 nodes"),
        (PlanRequest("uniform", parallel="hybrid"), 5, "cannot divide 5 nodes"),
        (PlanRequest("custom", layers=(10, 10, 8), parallel="hybrid"), 4, "cannot divide 4 nodes"),
        (PlanRequest("custom", layers=(10, 10), parallel="hybrid"), 4, "add up to 20 where the model has 28"),
        (PlanRequest(weights=(1,), parallel="hybrid"), 4, "weights 1: expected 2 to 8 numbers above 0"),
    ],
)
def test_stages_that_the_nodes_cannot_make_are_refused(wish: PlanRequest, count: int, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(model(28), [mac(f"mac{index}", 24, 30) for index in range(count)], QUICK, Workload(), wish)


def test_what_stands_in_the_way_of_a_hybrid_is_said() -> None:
    nodes = [mac(f"mac{index}", 24, 30) for index in range(4)]
    with pytest.raises(PlanError, match="has no rule to divide it inside its layers"):
        plan(model(28, model_type="mamba"), nodes, QUICK, Workload(), HYBRID)
    with pytest.raises(PlanError, match="no link that collectives run on"):
        plan(model(28), nodes, Links(LinkSpeed(1e-3, 1e9)), Workload(), HYBRID)
    unequal = [mac(f"mac{index}", 24 + index, 30) for index in range(4)]
    with pytest.raises(PlanError, match="needs 2 groups of 2 equal nodes at least"):
        plan(model(28), unequal, QUICK, Workload(), HYBRID)
    with pytest.raises(DoesNotFit) as caught:
        plan(model(400), nodes, QUICK, Workload(), HYBRID)
    assert caught.value.missing > 50 * GB
