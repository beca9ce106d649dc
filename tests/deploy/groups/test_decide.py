"""Which models are loaded, make room, go for idleness or are refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorus.config.served import LoadConfig
from chorus.deploy.groups.decide import REST_SECONDS, Decision, Standing, decide
from chorus.deploy.room import HERE, Need, Room, unmet, with_more
from chorus.messages.deploy import ModelState
from tests.deploy.groups.simulated import Ask, Simulated
from tests.many.arrivals import loads_in_order

SWAP = LoadConfig(min_loaded_seconds=30)
NOW = 1000.0
GIB = 1 << 30


def decided(*models: Standing, budget: int = 10, policy: LoadConfig = SWAP, now: float = NOW) -> Decision:
    free = budget - sum(model.booked.get(HERE, 0) for model in models)
    return decide(models, Room({HERE: free}, {HERE: budget}), policy, now)


def asked(name: str, needs: int, seconds: float = 1.0, **more: Any) -> Standing:
    return Standing(name, needs=(Need(needs),), waiting=1, waiting_since=NOW - seconds, **more)


def ready(name: str, booked: int, **more: Any) -> Standing:
    """Loaded long ago, and idle for a minute unless it is said otherwise."""
    usual = {"ready_since": NOW - 500, "idle_since": NOW - 60}
    return Standing(name, ModelState.READY, needs=(Need(booked),), booked={HERE: booked}, **{**usual, **more})


def test_what_fits_is_loaded_at_once_the_longest_waiting_first() -> None:
    found = decided(asked("new", 6, 1), asked("old", 6, 9), asked("small", 2, 0))
    assert found.load == ("old", "small")
    assert list(found.wait) == ["new"]


def test_how_much_a_model_needs_is_looked_for_first() -> None:
    assert decided(replace(asked("a", 1), needs=None)).find == ("a",)


def test_the_longest_idle_makes_room_and_only_as_many_as_are_needed() -> None:
    small, older, younger = ready("small", 1, idle_since=1), ready("older", 4, idle_since=2), ready("younger", 5)
    assert decided(small, older, younger, asked("x", 1)).make_room == ("small",)
    assert decided(small, older, younger, asked("x", 4)).make_room == ("older",)
    assert decided(small, older, younger, asked("x", 5)).make_room == ("small", "older")


def test_a_busy_model_makes_room_only_after_it_has_served_for_a_while() -> None:
    busy = ready("busy", 10, running=1, ready_since=NOW - 29)
    found = decided(busy, asked("x", 10))
    assert (found.make_room, found.look_at) == ((), NOW + 1)
    assert decided(replace(busy, ready_since=NOW - 30), asked("x", 10)).make_room == ("busy",)
    assert decided(replace(busy, ready_since=0, pinned=True), asked("x", 5), asked("y", 11)).make_room == ()


def test_an_idle_model_has_a_rest_first() -> None:
    idle = ready("idle", 10, ready_since=NOW - 5, idle_since=NOW - 1)
    assert decided(idle, asked("x", 10)).look_at == NOW - 1 + REST_SECONDS
    assert decided(replace(idle, idle_since=NOW - REST_SECONDS), asked("x", 10)).make_room == ("idle",)


def test_nobody_goes_for_a_model_that_would_not_fit_anyway() -> None:
    pinned, other = ready("pinned", 6 * GIB, pinned=True), ready("other", 4 * GIB)
    found = decided(pinned, other, asked("x", 5 * GIB), budget=10 * GIB)
    assert found.make_room == ()
    assert found.refuse == {
        "x": "no room for x: it needs 5.0 GiB, and 0 MiB of 10.0 GiB are left, taken by pinned 6.0 GiB (pinned), other "
        "4.0 GiB; unload one of them, choose a smaller context, or load it anyway with --force"
    }
    assert decided(pinned, other, asked("x", 5 * GIB, forced=True), budget=10 * GIB).load == ("x",)


@pytest.mark.parametrize(("on_full", "refused"), [("wait", False), ("refuse", True)])
def test_others_stay_where_the_settings_say_so(on_full: Any, refused: bool) -> None:
    policy = LoadConfig(on_full=on_full, min_loaded_seconds=30)
    found = decided(ready("a", 8), asked("x", 5, 99), asked("small", 2), policy=policy)
    assert (found.make_room, bool(found.refuse), found.load) == ((), refused, ("small",))


def test_a_model_that_is_to_be_there_at_the_start_drives_nobody_out() -> None:
    wished = Standing("x", needs=(Need(5),), wanted_since=NOW, gently=True)
    assert list(decided(ready("a", 8), wished).refuse) == ["x"]
    assert decided(ready("a", 8), replace(wished, gently=False)).make_room == ("a",)


def test_a_large_model_is_passed_by_small_ones_for_a_while_only() -> None:
    busy = ready("busy", 6, running=1, ready_since=NOW - 5)
    assert decided(busy, asked("large", 10, 29), asked("small", 3, 1)).load == ("small",)
    found = decided(busy, asked("large", 10, 30), asked("small", 3, 1))
    assert found.load == ()
    assert found.wait["small"] == "waits until large is loaded, which was asked for before"


def test_whoever_waits_long_keeps_nobody_from_being_looked_for_or_loaded_by_force() -> None:
    busy = ready("busy", 6, running=1, ready_since=NOW - 5)
    forced, unknown = asked("forced", 9, forced=True), replace(asked("unknown", 1), needs=None)
    found = decided(busy, asked("large", 10, 60), forced, unknown)
    assert (found.load, found.find, list(found.wait)) == (("forced",), ("unknown",), ["large"])


def test_an_idle_model_goes_when_its_time_is_over() -> None:
    idle = ready("a", 1, lifetime=60.0)
    assert decided(idle).go_idle == ("a",)
    assert decided(replace(idle, lifetime=61.0)) == Decision(look_at=NOW + 1)
    for change in ({"running": 1}, {"waiting": 1}, {"lifetime": None}, {"lifetime": -1.0}, {"wanted_since": 1.0}):
        assert decided(replace(idle, **change)).go_idle == ()  # type: ignore[arg-type]
    assert decided(replace(idle, lifetime=0.0, idle_since=NOW)).go_idle == ("a",)
    assert decided(replace(idle, state=ModelState.LOADING)).go_idle == ()


def test_one_that_drains_comes_back_where_that_is_better_for_all() -> None:
    drains = replace(ready("a", 10), state=ModelState.DRAINING)
    assert decided(drains).keep == ()
    assert decided(replace(drains, waiting=1)).keep == ("a",)
    assert decided(replace(drains, waiting=1, ends=True)).keep == ()
    for_room = replace(drains, makes_room=True, waiting=1)
    assert decided(for_room).keep == ("a",)
    found = decided(for_room, asked("x", 10))
    assert (found.keep, found.make_room, list(found.wait)) == ((), (), ["x"])


def over(machines: dict[str, int], *models: Standing, policy: LoadConfig = SWAP) -> Decision:
    """Of machines that have so much, nobody else being there."""
    return decide(models, room_beside(machines, models), policy, NOW)


def room_beside(machines: dict[str, int], models: Sequence[Standing]) -> Room:
    held = [{machine: -amount for machine, amount in model.booked.items()} for model in models]
    return Room(with_more(machines, held), machines)


def needing(name: str, *needs: Need, **more: Any) -> Standing:
    return replace(asked(name, 0, **more), needs=needs)


def holding(name: str, **booked: int) -> Standing:
    """The longer idle, the earlier its name."""
    return replace(ready(name, 0, idle_since=NOW - 600 + ord(name[0])), needs=(Need(0),), booked=booked)


ON_TWO = frozenset({"two"})


def test_only_those_make_room_that_hold_something_where_it_is_missing() -> None:
    machines = {HERE: 10, "one": 10, "two": 10}
    a, b, c = holding("a", here=1, one=9), holding("b", here=1, two=4), holding("c", here=1, two=5)
    assert over(machines, a, b, c, needing("x", Need(1), Need(5, ON_TWO))).make_room == ("b",)
    assert over(machines, a, b, c, needing("x", Need(1), Need(6, ON_TWO))).make_room == ("c",)
    assert over(machines, a, b, c, needing("x", Need(1), Need(7, ON_TWO))).make_room == ("b", "c")
    assert over(machines, a, b, c, needing("x", Need(1), Need(1, ON_TWO))).load == ("x",)


def test_what_is_left_of_other_machines_helps_nobody_and_the_refusal_names_the_one() -> None:
    machines = {HERE: 10 * GIB, "two": 10 * GIB}
    pinned = replace(holding("p", two=6 * GIB), pinned=True)
    refused = over(machines, pinned, holding("a", here=9 * GIB), needing("x", Need(5 * GIB, ON_TWO))).refuse
    assert refused == {
        "x": "no room for x: it needs 5.0 GiB on two, and 4.0 GiB of 10.0 GiB are left, taken by p 6.0 GiB (pinned); "
        "unload one of them, choose a smaller context, or load it anyway with --force"
    }


def test_two_that_need_the_same_machine_do_not_both_count_on_what_is_left_there() -> None:
    machines = {HERE: 10, "two": 10}
    first, second = needing("x", Need(6, ON_TWO), seconds=9), needing("y", Need(6, ON_TWO))
    found = over(machines, first, second)
    assert (found.load, list(found.wait) + list(found.refuse)) == (("x",), ["y"])
    both = over(machines, needing("x", Need(12), seconds=9), needing("y", Need(9)))
    assert both.load == ("x",), "of 20 in all, 8 are left"


def test_a_machine_of_which_nothing_is_known_holds_nobody_up() -> None:
    assert over({HERE: 10}, needing("x", Need(5), Need(99, ON_TWO))).load == ("x",)


def test_nobody_is_refused_for_what_one_holds_of_which_it_is_not_known_yet_where_it_will_be() -> None:
    machines = {HERE: 10, "two": 10}
    loads = replace(holding("a", here=10), needs=(Need(10),), state=ModelState.LOADING)
    room = Room({HERE: 10, "two": 0}, machines)  # it was counted there
    found = decide((loads, needing("x", Need(8, ON_TWO))), room, SWAP, NOW)
    assert (found.refuse, list(found.wait)) == ({}, ["x"])


MACHINES = (HERE, "one", "two")
PARTS = st.dictionaries(st.sampled_from(MACHINES), st.integers(1, 9))
NEEDS = st.lists(
    st.builds(Need, st.integers(1, 25), st.none() | st.frozensets(st.sampled_from(MACHINES), min_size=1)), min_size=1
)


@st.composite
def loaded(draw: st.DrawFn, name: str) -> Standing:
    since = st.sampled_from([NOW, NOW - 1, NOW - 29, NOW - 30, NOW - 500])
    return replace(
        ready(name, 0, ready_since=draw(since), idle_since=draw(since), running=draw(st.integers(0, 1))),
        booked=draw(PARTS),
        pinned=draw(st.booleans()),
    )


@given(st.tuples(*map(loaded, "abcde")), st.dictionaries(st.sampled_from(MACHINES), st.integers(0, 9)), NEEDS)
def test_whoever_makes_room_is_needed_for_it_and_may_be_taken(
    models: tuple[Standing, ...], free: dict[str, int], needs: list[Need]
) -> None:
    free = {machine: free.get(machine, 0) for machine in MACHINES}
    room = Room(free, with_more(free, [model.booked for model in models]))
    found = decide((*models, needing("x", *needs)), room, SWAP, NOW)
    going = [model for model in models if model.id in found.make_room]
    may_go = [model for model in models if not model.pinned and model.spared_until(SWAP) <= NOW]

    def fits_without(gone: list[Standing]) -> bool:
        return not unmet(needs, with_more(free, [model.booked for model in gone]))

    assert all(model in may_go for model in going)
    assert all(not fits_without([other for other in going if other is not model]) for model in going)
    if going:
        assert fits_without(going)
        assert not found.load
    else:
        assert bool(found.load) == fits_without([])
        assert found.load or not fits_without(may_go), "those who may go would have made room"
    assert bool(found.refuse) == (not fits_without([model for model in models if not model.pinned]))


def test_what_has_failed_is_tried_again_after_its_pause() -> None:
    failed = asked("a", 1, state=ModelState.FAILED, retry_at=NOW + 5)
    assert decided(failed) == Decision(look_at=NOW + 5)
    assert decided(failed, now=NOW + 5).load == ("a",)


def served(order: list[str], clients: int, seed: int, **more: Any) -> Simulated:
    """Clients who take their next question from one list as soon as they are answered."""
    draw, left = random.Random(seed), iter(order)
    server = Simulated(**{"sizes": dict.fromkeys("abcde", 1), "budget": 2, "policy": LoadConfig(), **more})

    def next_one(_: Ask | None) -> None:
        if name := next(left, None):
            server.ask(name, draw.uniform(0.2, 0.6))

    server.on_end = next_one
    for _ in range(clients):
        next_one(None)
    server.run()
    return server


def test_requests_for_one_model_share_its_loads() -> None:
    """Five models of which two fit, 40 requests by four clients, against a server that answers in their order."""
    shares = []
    for seed in range(40):
        order = random.Random(seed).choices("abcde", k=40)
        server = served(order, 4, seed, policy=LoadConfig(min_loaded_seconds=5))
        assert [ask.model for ask in server.asks] == order
        assert all(ask.ended is not None and not ask.refused for ask in server.asks)
        assert server.most_booked <= server.budget
        shares.append(server.loads / loads_in_order(order, 2))
    assert mean(shares) <= 0.7


MODELS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 10), min_size=1)
ASKED = st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 120), st.floats(0.1, 200)), max_size=25)


@given(MODELS, st.integers(1, 20), ASKED, st.sets(st.sampled_from("abcdef"), max_size=2), st.data())
def test_everybody_is_answered_or_refused_with_the_figures_and_nothing_is_cut(
    sizes: dict[str, int], budget: int, asks: list[tuple[str, float, float]], pinned: set[str], data: st.DataObject
) -> None:
    policy = LoadConfig(min_loaded_seconds=data.draw(st.sampled_from([0, 1, 30])))
    lifetime = data.draw(st.sampled_from([None, 0.0, 5.0, -1.0]))
    server = Simulated(sizes, budget, policy, pinned=frozenset(pinned), lifetime=lifetime)
    for name, at, seconds in asks:
        if name in sizes:
            server.after(at, lambda name=name, seconds=seconds: server.ask(name, seconds))  # type: ignore[misc]
    server.run()
    assert server.most_booked <= budget
    for ask in server.asks:
        assert ask.ended is not None
        if ask.refused:
            assert sizes[ask.model] > budget - sum(sizes[name] for name in pinned & sizes.keys())


@given(st.integers(0, 1000), st.sampled_from([1, 30]))
def test_a_model_gets_its_turn_although_others_are_asked_for_without_end(seed: int, least: int) -> None:
    """Two models are never idle, and nobody waits longer than both have a right to, and their last answers take."""
    draw = random.Random(seed)
    policy = LoadConfig(min_loaded_seconds=least)
    server = Simulated({"a": 1, "b": 1, "c": 2}, 2, policy)
    ends = 600.0

    def again(ask: Ask) -> None:
        if server.now < ends:
            server.ask(ask.model, draw.uniform(0.5, 5))

    server.on_end = again
    for name in "aabbc":
        server.ask(name, 1.0)
    server.run()
    waits = [(ask.begun or server.now) - ask.at for ask in server.asks]
    assert all(ask.begun is not None for ask in server.asks)
    assert max(waits) <= 3 * (least + REST_SECONDS + server.load_seconds + 5)
    assert {ask.model for ask in server.asks if ask.ended and ask.ended > 100} == {"a", "b", "c"}


def test_two_models_do_not_chase_each_other() -> None:
    """Whoever is asked for without a pause serves for its least time."""
    server = Simulated({"a": 1, "b": 1}, 1, LoadConfig(min_loaded_seconds=30))
    server.on_end = lambda ask: server.ask(ask.model, 1.0) and None if server.now < 600 else None
    server.ask("a", 1.0)
    server.ask("b", 1.0)
    server.run()
    assert 10 <= server.loads <= 1 + 600 / 30
