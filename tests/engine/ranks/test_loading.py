from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from chorus.engine.ranks.followers import load_all

Progress = Callable[[int, int], None]


class Asked:
    """A follower that loads when its thread gets its turn."""

    def __init__(self, rank: int, asked: list[int]) -> None:
        self.rank = rank
        self._asked = asked

    def begin_load(self, request: object, timeout: float) -> Callable[[Progress], None]:
        self._asked.append(self.rank)
        return lambda progress: progress(1, 1)


def test_every_rank_is_asked_before_the_leader_begins_to_wait_for_them() -> None:
    """Ranks of a collective meet inside MLX, which lets no other thread run: who is asked later is never asked."""
    asked: list[int] = []
    seen: list[list[int]] = []
    followers = [Asked(rank, asked) for rank in (1, 2, 3)]
    request = cast(Any, None)
    load_all(cast(Any, followers), request, lambda: seen.append(list(asked)), lambda *_: None, timeout=60)
    assert seen == [[1, 2, 3]]
