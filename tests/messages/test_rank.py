from __future__ import annotations

import pytest

from chorus.messages.load import Loaded, LoadProgress, LoadRequest, Status
from chorus.messages.rank import (
    Drop,
    Erase,
    Evict,
    Feed,
    Fork,
    Leave,
    Operation,
    Part,
    Restore,
    Save,
    Split,
    Step,
    Store,
    step_from_wire,
    step_to_wire,
)

OPERATIONS: list[Operation] = [
    Drop(3),
    Leave(3),
    Fork(4, (Part(7, 20), Part(8, 0))),
    Store(4, 9, 20, 30, state=True),
    Split(9, 5, 10),
    Evict(7),
    Save(9, "ab" * 16),
    Restore(11, "cd" * 16),
    Erase("ab" * 16),
    Erase(),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)
def test_an_operation_arrives_as_it_was_sent(operation: Operation) -> None:
    step = Step(5, (operation,), (Feed(4, (1, 2), partial=True),), lane=1)
    assert step_from_wire(step_to_wire(step)) == step


def test_what_a_rank_says_of_its_disk_arrives_as_it_was_sent() -> None:
    status = Status(5, saved=("aa", "bb"), restored=("cc",), failed=("dd",), disk_bytes=7)
    assert Status.from_wire(status.to_wire()) == status
    progress = LoadProgress(3, 3, Loaded(first_layer=2, last_layer=4, disk=True, files=("aa", "bb")))
    assert LoadProgress.from_wire(progress.to_wire()) == progress
    request = LoadRequest(disk_bytes=1 << 34, disk_folder="/tmp/here")
    assert LoadRequest.from_wire(request.to_wire()) == request
