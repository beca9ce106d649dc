"""What must hold of every plan, over random clusters and models."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chorus.planning.costs import Links, LinkSpeed, Machine, Workload, predict_pipeline, stage_table
from chorus.planning.cuts import apportion
from chorus.planning.facts import ModelFacts
from chorus.planning.nodes import parse_nodes
from chorus.planning.plan import DoesNotFit, Plan, PlanError
from chorus.planning.planner import plan
from chorus.planning.problem import PlanRequest, Problem
from chorus.planning.search import best_split
from chorus.planning.tensor import _sums, predict_tensor, slice_table
from tests.planning.clusters import GB, MB, WORKLOADS, clusters, links, mac, model, models

FIXED = ("uniform", "memory_proportional", "compute_proportional", "balanced")
STUDIO, MINI = mac("studio", 48, 30), mac("mini", 16, 10)

properties = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


def try_plan(
    facts: ModelFacts, nodes: Sequence[Machine], link: Links, work: Workload, wish: PlanRequest
) -> Plan | PlanError:
    try:
        return plan(facts, nodes, link, work, wish)
    except PlanError as error:
        return error


@properties
@given(models(), clusters(), links(), WORKLOADS, st.sampled_from(["auto", *FIXED]))
def test_a_plan_holds_every_layer_once_in_order_within_limits_or_says_what_is_missing(
    facts: ModelFacts, nodes: list[Machine], link: Links, work: Workload, strategy: str
) -> None:
    made = try_plan(facts, nodes, link, work, PlanRequest(strategy))  # type: ignore[arg-type]
    if isinstance(made, PlanError):
        if not isinstance(made, DoesNotFit):
            assert strategy != "auto"
            assert len(nodes) > len(facts.layers)
            return
        assert made.missing > 0
        assert "\n" not in str(made)
        return
    assert [rank.rank for rank in made.ranks] == list(range(len(made.ranks)))
    assert len(set(made.nodes)) == len(made.ranks)
    memory = {node.name: node.memory for node in nodes}
    for rank in made.ranks:
        assert rank.needed_bytes <= rank.memory_bytes == memory[rank.node]
    if made.parallel == "tensor":
        assert sum(made.split) == facts.groups
        assert all(share >= 1 for share in made.split)
    else:
        held = [range(rank.first_layer, rank.last_layer + 1) for rank in reversed(made.ranks)]
        assert [layer for run in held for layer in run] == list(range(len(facts.layers)))
        assert all(len(run) > 0 for run in held)
        assert sum(made.split) == len(facts.layers)
    if strategy == "auto":
        assert {node.name for node in nodes} == {*made.nodes, *(node.node for node in made.excluded)}
        assert (made.parallel == "single") == (len(made.ranks) == 1)
    else:
        assert made.nodes == tuple(node.name for node in nodes)


@properties
@given(models(), clusters(most_nodes=8), links(), WORKLOADS)
def test_auto_is_never_predicted_slower_than_another_strategy(
    facts: ModelFacts, nodes: list[Machine], link: Links, work: Workload
) -> None:
    others = [try_plan(facts, nodes, link, work, PlanRequest(strategy)) for strategy in FIXED]  # type: ignore[arg-type]
    fitting = [other for other in others if isinstance(other, Plan)]
    auto = try_plan(facts, nodes, link, work, PlanRequest("auto"))
    if fitting:
        assert isinstance(auto, Plan)
        best = min(other.prediction.request_seconds for other in fitting)
        assert auto.prediction.request_seconds <= best * (1 + 1e-6)


@properties
@given(models(), clusters(), links(), WORKLOADS, st.integers(0, 5), st.integers(1, 8000))
def test_more_memory_never_makes_a_model_stop_fitting(
    facts: ModelFacts, nodes: list[Machine], link: Links, work: Workload, place: int, more: int
) -> None:
    richer = list(nodes)
    richer[place % len(nodes)] = replace(nodes[place % len(nodes)], memory=nodes[place % len(nodes)].memory + more * MB)
    before, after = (try_plan(facts, some, link, work, PlanRequest()) for some in (nodes, richer))
    if isinstance(before, Plan):
        assert isinstance(after, Plan)
    elif isinstance(after, DoesNotFit):
        assert isinstance(before, DoesNotFit)
        assert after.missing <= before.missing


@properties
@given(models(), clusters(backends=("metal",)), links(), WORKLOADS, st.integers(0, 5), st.integers(1, 8000))
def test_more_memory_never_makes_auto_slower(
    facts: ModelFacts, nodes: list[Machine], link: Links, work: Workload, place: int, more: int
) -> None:
    """On Metal, where weights run as stored: elsewhere memory also decides whether they are unpacked."""
    richer = list(nodes)
    richer[place % len(nodes)] = replace(nodes[place % len(nodes)], memory=nodes[place % len(nodes)].memory + more * MB)
    before, after = (try_plan(facts, some, link, work, PlanRequest()) for some in (nodes, richer))
    if isinstance(before, Plan):
        assert isinstance(after, Plan)
        assert after.prediction.request_seconds <= before.prediction.request_seconds * (1 + 1e-6)


@properties
@given(models(), clusters(), links(), WORKLOADS, st.randoms(use_true_random=False))
def test_the_order_in_which_nodes_are_named_does_not_change_an_auto_plan(
    facts: ModelFacts, nodes: list[Machine], link: Links, work: Workload, chance: object
) -> None:
    shuffled = list(nodes)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = (try_plan(facts, some, link, work, PlanRequest()) for some in (nodes, shuffled))
    if isinstance(one, Plan):
        assert isinstance(other, Plan)
        assert (one.ranks, one.prediction, one.parallel) == (other.ranks, other.prediction, other.parallel)
    else:
        assert str(one) == str(other)


@properties
@given(clusters(), st.randoms(use_true_random=False), st.sampled_from(["memory_proportional", "compute_proportional"]))
def test_a_proportional_share_follows_its_node_wherever_it_is_named(
    nodes: list[Machine], chance: object, strategy: str
) -> None:
    roomy = [replace(node, memory=node.memory + 400 * GB) for node in nodes]
    shuffled = list(roomy)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    plans = [plan(model(28), some, Links(), Workload(), PlanRequest(strategy)) for some in (roomy, shuffled)]  # type: ignore[arg-type]
    held = [{rank.node: rank.layers for rank in made.ranks} for made in plans]
    assert held[0] == held[1]


def every_outcome(facts: ModelFacts, nodes: Sequence[Machine], link: Links, work: Workload) -> Iterator[float]:
    """The predicted time of every plan: each ordered set of nodes with each split, each set with each share."""
    tables = {node.name: stage_table(facts, node, work) for node in nodes}
    layers = len(facts.layers)
    for count in range(1, min(len(nodes), layers) + 1):
        cuts = [(0, *cut, layers) for cut in combinations(range(1, layers), count - 1)]
        for order in permutations(nodes, count):
            stages = [tables[node.name] for node in order]
            for bounds in cuts:
                if all(stage.fits[run] for stage, run in zip(stages, pairwise(bounds), strict=True)):
                    yield predict_pipeline(facts, stages, link, work, bounds).request_seconds
    if facts.model_type != "llama":
        return
    slices = {node.name: slice_table(facts, tables[node.name], work) for node in nodes}
    for count in range(2, min(len(nodes), facts.groups) + 1):
        for chosen in combinations(nodes, count):
            some = [slices[node.name] for node in chosen]
            sums = _sums(facts, some, link, work)
            for cut in combinations(range(1, facts.groups), count - 1):
                shares = [b - a for a, b in pairwise((0, *cut, facts.groups))]
                fits = all(s.need[share] <= s.node.memory for s, share in zip(some, shares, strict=True))
                if sums is not None and fits:
                    yield predict_tensor(some, shares, sums, work).request_seconds


@settings(properties, max_examples=60)
@given(models(most_layers=6), clusters(), links(), WORKLOADS)
def test_auto_is_the_best_of_all_plans_up_to_six_nodes(
    facts: ModelFacts, nodes: list[Machine], link: Links, work: Workload
) -> None:
    best = min(every_outcome(facts, nodes, link, work), default=None)
    auto = try_plan(facts, nodes, link, work, PlanRequest())
    if best is None:
        assert isinstance(auto, DoesNotFit)
    else:
        assert isinstance(auto, Plan)
        assert auto.prediction.request_seconds == pytest.approx(best, rel=1e-6)


@settings(properties, max_examples=200)
@given(models(most_layers=9), clusters(most_nodes=3), links(), st.sampled_from([1, 8, 64]), st.sampled_from([2, 7, 60]))
def test_a_chain_is_cut_where_the_whole_request_is_quickest(
    facts: ModelFacts, nodes: list[Machine], link: Links, output: int, chunks: int
) -> None:
    work = Workload(prompt=64 * chunks, output=output, context=4096, chunk=64, reserve=0)
    stages = [stage_table(facts, node, work) for node in nodes]
    layers = len(facts.layers)
    cuts = [(0, *cut, layers) for cut in combinations(range(1, layers), len(nodes) - 1)]
    outcomes = [
        predict_pipeline(facts, stages, link, work, bounds).request_seconds
        for bounds in cuts
        if all(stage.fits[run] for stage, run in zip(stages, pairwise(bounds), strict=True))
    ]
    found = best_split(Problem(facts, nodes, link, work), stages)
    assert (found is None) == (not outcomes)
    if found:
        assert found.seconds == pytest.approx(min(outcomes), rel=1e-9)


@settings(properties, max_examples=30)
@given(models(most_layers=5), clusters(most_nodes=4), links(), WORKLOADS)
def test_the_leader_asked_for_leads_and_the_plan_is_the_best_of_those(
    facts: ModelFacts, nodes: list[Machine], link: Links, work: Workload
) -> None:
    auto = try_plan(facts, nodes, link, work, PlanRequest(leader="node0"))
    free = try_plan(facts, nodes, link, work, PlanRequest())
    if isinstance(auto, Plan):
        assert auto.nodes[0] == "node0"
        assert isinstance(free, Plan)
        assert free.prediction.request_seconds <= auto.prediction.request_seconds * (1 + 1e-6)


@properties
@given(models(), clusters(), links(), WORKLOADS)
def test_a_plan_survives_json(facts: ModelFacts, nodes: list[Machine], link: Links, work: Workload) -> None:
    made = try_plan(facts, nodes, link, work, PlanRequest())
    if isinstance(made, Plan):
        assert Plan.from_json(json.dumps(made.to_json())) == made


def test_more_ranks_than_parts_are_refused() -> None:
    with pytest.raises(PlanError, match="3 ranks cannot share what has 2 parts"):
        apportion([1.0, 1.0, 1.0], 2, ["a", "b", "c"])


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12), st.integers(12, 200))
def test_apportioned_parts_add_up_and_miss_their_quota_by_less_than_one(shares: list[float], total: int) -> None:
    names = [f"node{index}" for index in range(len(shares))]
    parts = apportion(shares, total, names)
    assert sum(parts) == total
    assert min(parts) >= 1
    quotas = [share / sum(shares) * total for share in shares]
    if min(quotas) >= 1:
        assert all(abs(part - quota) < 1 for part, quota in zip(parts, quotas, strict=True))


def test_studio_and_mini_share_28_layers_by_memory_as_21_and_7() -> None:
    made = plan(model(28), [STUDIO, MINI], Links(), Workload(), PlanRequest("memory_proportional"))
    assert made.split == (21, 7)
    assert [(rank.node, rank.first_layer, rank.last_layer) for rank in made.ranks] == [
        ("studio", 7, 27),
        ("mini", 0, 6),
    ]


def test_custom_proportions_of_30_layers_are_21_and_9() -> None:
    made = plan(model(30), [STUDIO, MINI], Links(), Workload(), PlanRequest("custom", proportions=(0.7, 0.3)))
    assert made.split == (21, 9)


def test_exact_layers_are_kept_in_rank_order() -> None:
    nodes = [STUDIO, MINI, mac("other", 16, 10)]
    made = plan(model(30), nodes, Links(), Workload(), PlanRequest("custom", layers=(20, 7, 3)))
    assert [(rank.first_layer, rank.last_layer) for rank in made.ranks] == [(10, 29), (3, 9), (0, 2)]


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (PlanRequest("custom"), "needs proportions or layers"),
        (PlanRequest("custom", layers=(20, 7, 3)), "has 3 entries for 2 nodes"),
        (PlanRequest("custom", layers=(20, 7)), "add up to 27 where the model has 28"),
        (PlanRequest("custom", layers=(28, 0)), "every node needs more than 0"),
        (PlanRequest("fastest"), "strategy fastest is unknown"),  # type: ignore[arg-type]
        (PlanRequest(leader="nobody"), "the leader nobody is not among the nodes studio, mini"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(wish: PlanRequest, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(model(28), [STUDIO, MINI], Links(), Workload(), wish)


def test_a_custom_split_that_does_not_fit_is_refused_with_the_nearest_that_does() -> None:
    with pytest.raises(DoesNotFit, match=r"needs .* more memory \(on mini .*\); the nearest split that fits is 24,36"):
        plan(model(60), [STUDIO, MINI], Links(), Workload(), PlanRequest("custom", layers=(10, 50)))


def test_shares_that_do_not_fit_give_way_and_the_plan_says_so() -> None:
    nodes = [mac("small", 6, 40), mac("large", 40, 10)]
    made = plan(model(28), nodes, Links(), Workload(), PlanRequest("compute_proportional"))
    assert made.split[0] < 22
    assert made.notes == ("the shares alone would give 22,6, which does not fit",)


def test_one_node_is_used_when_the_others_would_only_slow_it_down() -> None:
    made = plan(model(28), [STUDIO, MINI], Links(), Workload(), PlanRequest())
    assert made.parallel == "single"
    assert made.nodes == ("studio",)
    (left_out,) = made.excluded
    assert left_out.node == "mini"
    assert "instead of" in left_out.reason


def test_a_node_too_small_for_one_layer_is_left_out_with_that_reason() -> None:
    made = plan(model(28), [STUDIO, mac("tiny", 0.7, 100)], Links(), Workload(), PlanRequest())
    assert made.nodes == ("studio",)
    assert "does not fit in its 700.0 MB" in made.excluded[0].reason


def test_a_slow_node_is_used_when_memory_leaves_no_choice() -> None:
    made = plan(model(120), [STUDIO, MINI], Links(), Workload(), PlanRequest())
    assert made.parallel == "pipeline"
    assert sorted(made.nodes) == ["mini", "studio"]


def test_fast_links_make_tensor_parallel_the_choice_and_slow_ones_do_not() -> None:
    twins = [mac("one", 64, 30), mac("two", 64, 30)]
    fast = Links(LinkSpeed(latency=1e-5, bandwidth=5e9, all_reduce=1e-5))
    assert plan(model(28), twins, fast, Workload(), PlanRequest()).parallel == "tensor"
    assert plan(model(28), twins, fast, Workload(), PlanRequest()).split == (4, 4)
    assert plan(model(28), twins, fast, Workload(), PlanRequest(parallel="pipeline")).parallel == "single"
    assert plan(model(28), twins, Links(), Workload(), PlanRequest()).parallel == "single"
    assert plan(model(28, model_type="mamba"), twins, fast, Workload(), PlanRequest()).parallel == "single"


def test_unequal_machines_get_unequal_tensor_weights() -> None:
    nodes = [mac("large", 64, 30), mac("small", 64, 10)]
    fast = Links(LinkSpeed(latency=1e-6, bandwidth=20e9, all_reduce=1e-6))
    made = plan(model(28), nodes, fast, Workload(), PlanRequest())
    assert (made.parallel, made.nodes, made.split) == ("tensor", ("large", "small"), (6, 2))


def test_what_does_not_fit_says_how_much_is_missing_and_what_would_fit() -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan(model(100), [mac("one", 24, 30)], Links(), Workload())
    # 40 GB of layers, 0.6 GB of ends, and about 2 GB of cache, activations and reserve on a machine of 24.
    assert 17 * GB < caught.value.missing < 20 * GB
    assert caught.value.hints == ("an 8-bit version fits", "add a 48 GB node")
    assert str(caught.value).endswith("GB more memory; an 8-bit version fits; or add a 48 GB node")


def test_a_cache_too_large_is_answered_with_fewer_at_a_time() -> None:
    with pytest.raises(DoesNotFit, match="at a time instead of 64 it fits"):
        plan(model(28), [mac("one", 16, 30)], Links(), Workload(concurrency=64, context=16384))


def test_the_cache_is_charged_as_a_rectangle() -> None:
    small = plan(model(28), [STUDIO], Links(), Workload(context=4096, concurrency=1))
    large = plan(model(28), [STUDIO], Links(), Workload(context=8192, concurrency=4))
    assert small.ranks[0].cache_bytes == 28 * 1024 * 4096 * 2
    assert large.ranks[0].cache_bytes == 8 * small.ranks[0].cache_bytes


def test_a_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(PlanError, match="the model's context is 2048 tokens, not 8192"):
        plan(model(28, context=2048), [STUDIO], Links(), Workload())


def test_sixty_four_nodes_get_a_plan_that_says_it_is_a_heuristic() -> None:
    nodes = [mac(f"node{index:02}", 8 + index % 5 * 8, 8 + index % 7 * 4) for index in range(64)]
    made = plan(model(100, 1500 * MB), nodes, Links(), Workload(prompt=4096))
    assert sum(made.split) == 100
    assert made.notes == ("64 nodes: found by a heuristic; up to 6 the search is exact",)
    balanced = plan(model(100, 1500 * MB), nodes, Links(), Workload(prompt=4096), PlanRequest("balanced"))
    assert made.prediction.request_seconds <= balanced.prediction.request_seconds


def test_planning_and_configuration_load_no_mlx() -> None:
    modules = ("planning.planner", "planning.nodes", "planning.facts", "config.sources", "config.hostfile")
    modules += ("cluster.profile.machine", "cluster.profile.links", "models.preshard.folder")
    lines = [*(f"import chorus.{name}" for name in modules), "import sys"]
    check = "print(sorted(name for name in sys.modules if name.partition('.')[0] in ('mlx', 'mlx_lm')))"
    done = subprocess.run(
        [sys.executable, "-c", "; ".join([*lines, check])], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_model_that_more_nodes_than_it_has_groups_cannot_hold_is_refused() -> None:
    facts, nodes = replace(model(60), groups=2), [mac(f"mac{index}", 8, 10) for index in range(4)]
    with pytest.raises(DoesNotFit, match=r"needs .* more memory; use parallel pipeline; or add a node"):
        plan(facts, nodes, Links(), Workload(), PlanRequest(parallel="tensor"))


def test_a_mac_of_which_only_the_size_is_known_gives_no_more_than_its_gpu_may_hold() -> None:
    """Two thirds of a small Mac's memory, three quarters of a large one's, less what activations take."""
    nodes = parse_nodes("8GB,16GB,64GB,512GB", 0.8).nodes
    working_sets = [8 * GB * 2 // 3, 16 * GB * 2 // 3, 64 * GB * 3 // 4, 512 * GB * 3 // 4]
    assert [node.memory + (2 << 30) <= most for node, most in zip(nodes, working_sets, strict=True)] == [True] * 4
