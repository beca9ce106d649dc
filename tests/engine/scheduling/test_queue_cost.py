from __future__ import annotations

import pytest

from benchmarks.queueing import FEW, SCENES, Queue, Scene, steps_taken

MANY = 3000
MOST = 2.0
"""Of the lines of Python that a step runs with few in the queue: who looks at all of them runs many times as many."""


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_a_long_queue_costs_a_step_no_more_than_a_short_one(scene: Scene) -> None:
    few, many = (steps_taken(scene, waiting, 30) for waiting in (FEW, MANY))
    assert many <= MOST * few


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_streams_end_and_others_begin_while_it_is_looked_at(scene: Scene) -> None:
    queue = Queue(scene, FEW)
    begun = set()
    for _ in range(100):
        queue.step()
        begun |= set(queue.scheduler._by_number)
        assert queue.scheduler.queued >= FEW
    assert len(begun) > queue.scheduler.running > 1
