"""How much is booked for a model, here and at those who book for it."""

from __future__ import annotations

from chorus.deploy.groups.booking import Needs
from chorus.deploy.room import HERE, Need

NEEDS = Needs(1, fixed=100, cache=10, at=frozenset({HERE}), others={"worker": 50})


def test_a_model_needs_its_part_of_every_machine() -> None:
    assert NEEDS.wanted == (Need(110, frozenset({HERE})), Need(60, frozenset({"worker"})))


def test_its_caches_have_a_context_to_spare_where_all_its_machines_have_room_for_that() -> None:
    for free, booked in (
        ({HERE: 500, "worker": 500}, 120),
        ({HERE: 115, "worker": 500}, 115),
        ({HERE: 500, "worker": 65}, 115),
        ({HERE: 500, "worker": 60}, 110),
        ({HERE: 500, "worker": 1}, 110),
        ({HERE: 500}, 120),
        ({HERE: 500, "worker": 500, "other": 1}, 120),
    ):
        assert NEEDS.of(free, alone=False) == booked
        assert NEEDS.booked_elsewhere(booked) == {"worker": booked - 50}
    assert NEEDS.of({HERE: 500, "worker": 500}, alone=True) == 110
