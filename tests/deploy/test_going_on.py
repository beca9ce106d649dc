"""With whom and with how much room a cluster goes on after a loss, and when others would be better."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chorus.config.engine import EngineSpec
from chorus.config.sections import ShardingConfig
from chorus.deploy.nodes.deployment import less_context
from chorus.deploy.nodes.group import ClusterGroup, choices
from chorus.deploy.nodes.plan import machine_of, planned, wanted_context
from chorus.deploy.nodes.room import DoesNotHold, Fit, Offer
from chorus.planning.costs import ETHERNET, Links, Machine
from chorus.planning.facts import ModelFacts, read_facts
from tests.support.tiny_model import write_tiny_model

HERE = Machine("here", "cpu", 1 << 30, 1e11, 1e10)


def nodes(names: str) -> list[Any]:
    return [SimpleNamespace(name=name, node_id=name) for name in names]


def tried(wanted: str, before: str, spares: str = "") -> list[tuple[str, Fit]]:
    found = choices(nodes(wanted), nodes(before), nodes(spares))
    return [("".join(node.name for node in chosen), fit) for chosen, fit in found]


def test_those_that_are_left_go_on_at_once_then_with_less_room() -> None:
    assert tried("a", before="ab") == [("a", Fit.WHOLE), ("a", Fit.LESS)]
    assert tried("", before="b") == [("", Fit.WHOLE), ("", Fit.LESS)]


@pytest.mark.parametrize(("wanted", "spares"), [("ac", ""), ("a", "c")])
def test_a_node_that_had_no_rank_comes_in_for_the_lost_one_before_there_is_less_room(wanted: str, spares: str) -> None:
    expected = [("a", Fit.WHOLE), ("ac", Fit.WHOLE), ("a", Fit.LESS), ("ac", Fit.LESS)]
    assert tried(wanted, before="ab", spares=spares) == expected


def test_no_more_nodes_come_in_than_were_lost() -> None:
    assert tried("acde", before="ab")[1] == ("ac", Fit.WHOLE)


def test_who_plans_anew_on_purpose_uses_all_that_are_wanted() -> None:
    assert tried("abc", before="")[0] == ("abc", Fit.WHOLE)


@pytest.mark.parametrize(("now", "then", "pays"), [(10, 12, True), (10, 11.9, False), (0, 1, True)])
def test_planning_anew_pays_by_a_fifth_or_where_the_context_has_no_room(now: float, then: float, pays: bool) -> None:
    assert Offer(now, then).pays is pays


def test_an_offer_says_both_speeds() -> None:
    assert str(Offer(10.04, 14)) == "about 14 tokens/s with it, 10 now"
    assert "no room" in str(Offer(0, 14))


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> ModelFacts:
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    return read_facts(write_tiny_model(folder, "llama", vocab_size=512, max_position_embeddings=16384), "tiny")


def spec(context: int | None = None) -> EngineSpec:
    return EngineSpec(address="unix:/x", model_path=Path("/m"), context=context)


def fitting(facts: ModelFacts, context: int) -> Machine:
    """A machine with just enough room for so many tokens."""
    needed = planned([HERE], Links(ETHERNET), facts, spec(context), ShardingConfig()).ranks[0].needed_bytes
    return replace(HERE, memory=needed)


def test_a_plan_takes_a_smaller_context_only_where_that_will_do(facts: ModelFacts) -> None:
    small = fitting(facts, 4096)
    with pytest.raises(DoesNotHold, match="more memory"):
        planned([small], Links(ETHERNET), facts, spec(16384), ShardingConfig(), Fit.WHOLE)
    made = planned([small], Links(ETHERNET), facts, spec(16384), ShardingConfig(), Fit.LESS)
    assert made.workload.context == 4096
    wanted = wanted_context(spec(16384), facts)
    assert less_context(made, wanted) == "room for a context of 4,096 tokens, not 16,384"
    assert less_context(made, 4096) == ""


def test_a_machine_without_room_for_a_request_holds_nothing(facts: ModelFacts) -> None:
    with pytest.raises(DoesNotHold, match="more memory"):
        planned([replace(HERE, memory=1)], Links(ETHERNET), facts, spec(), ShardingConfig(), Fit.LESS)


def test_a_plan_that_does_not_fit_says_whose_memory_would_mend_it(facts: ModelFacts) -> None:
    full = replace(HERE, name="mini", memory=1)
    with pytest.raises(DoesNotHold) as refused:
        planned([HERE, full], Links(ETHERNET), facts, spec(), ShardingConfig(), Fit.WHOLE)
    (missing,) = refused.value.missing
    had = {"here": 5, "mini": 3, "other": 0}  # as the books see them
    need = missing.more_than(had)
    assert not need.is_met(had)
    assert not need.is_met({**had, "here": 1 << 40})
    assert not need.is_met({**had, "other": 1 << 40})
    assert need.is_met({**had, "mini": 1 << 40})


def test_a_node_of_another_release_may_say_more_of_itself() -> None:
    assert machine_of({**asdict(HERE), "colour": "space grey"}) == HERE


def test_where_one_rank_cannot_be_started_no_other_node_goes_on_with_its_own() -> None:
    """It would start one that nobody leads, with memory that the next try lacks."""
    left: list[str] = []

    class Refused(Exception):
        pass

    async def spawn(order: str, sources: tuple[()]) -> None:
        if order == "full":
            raise Refused
        try:
            await asyncio.Event().wait()
        finally:
            left.append(order)

    async def act() -> None:
        group: Any = SimpleNamespace(_orders=("copies", "full", "loads"), _spawn=spawn)
        own = asyncio.create_task(asyncio.Event().wait())
        with pytest.raises(Refused):
            await asyncio.wait_for(ClusterGroup._spawn_all(group, [(), (), ()], own), 60)  # type: ignore[arg-type]
        own.cancel()

    asyncio.run(act())
    assert left == ["copies", "loads"]
