"""Who makes room for whom."""

from __future__ import annotations

import pytest

from chorus.api.process import connections_allowed
from chorus.api.server.connections import Pool


class Connection:
    ended = False

    def end(self) -> None:
        self.ended = True


def filled(pool: Pool, number: int) -> list[Connection]:
    entered = []
    for _ in range(number):
        assert pool.make_room()
        entered.append(Connection())
        pool.enter(entered[-1])
    return entered


def ended(connections: list[Connection]) -> list[int]:
    return [number for number, connection in enumerate(connections) if connection.ended]


def test_the_stranger_that_was_idle_for_longest_goes_first() -> None:
    pool = Pool(100, 3, keys_required=True)
    first, second, third = entered = filled(pool, 3)
    pool.mark(first, busy=True)
    pool.mark(first, busy=False)
    filled(pool, 2)
    assert ended(entered) == [1, 2]
    assert (first.ended, second.ended, third.ended) == (False, True, True)
    assert pool.strangers == 3


def test_who_showed_a_key_takes_no_strangers_place_until_it_shows_none() -> None:
    pool = Pool(100, 2, keys_required=True)
    known = filled(pool, 1)
    pool.mark(known[0], known=True)
    filled(pool, 50)
    assert (len(pool), pool.strangers) == (3, 2)
    assert ended(known) == []
    pool.mark(known[0], known=False)
    filled(pool, 2)
    assert ended(known) == []
    filled(pool, 1)
    assert ended(known) == [0]


def test_strangers_that_are_being_answered_cannot_keep_those_with_a_key_out() -> None:
    pool = Pool(100, 2, keys_required=True)
    strangers = filled(pool, 2)
    for stranger in strangers:
        pool.mark(stranger, busy=True)
    assert pool.make_room()
    assert ended(strangers) == [0]


def test_where_no_key_is_asked_for_all_places_are_everybodys_and_no_answer_is_cut_off() -> None:
    pool = Pool(4, 2, keys_required=False)
    everybody = filled(pool, 4)
    for one in everybody:
        pool.mark(one, busy=True)
    assert not pool.make_room()
    pool.mark(everybody[2], busy=False)
    assert pool.make_room()
    assert ended(everybody) == [2]


def test_those_with_a_key_are_bounded_too() -> None:
    pool = Pool(3, 2, keys_required=True)
    for connection in filled(pool, 2):
        pool.mark(connection, known=True, busy=True)
    idle = filled(pool, 1)
    pool.mark(idle[0], known=True)
    assert pool.make_room()
    assert ended(idle) == [0]


def test_who_has_left_is_forgotten() -> None:
    pool = Pool(3, 2, keys_required=True)
    (one,) = filled(pool, 1)
    pool.leave(one)
    pool.mark(one, known=True)
    pool.leave(one)
    assert len(pool) == 0


@pytest.mark.parametrize(("files", "places"), [(20_000, 1000), (1024, 896), (256, 128), (100, 50)])
def test_there_are_no_more_places_than_files(files: int, places: int) -> None:
    assert connections_allowed(1000, files) == places
