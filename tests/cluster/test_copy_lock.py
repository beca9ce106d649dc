"""Two ranks of one node that need the same files: one copies, the other waits for it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from chorus.cluster.agent import model_files
from chorus.cluster.transfer.share import TransferFailed

DEADLINE = 120.0


def test_the_second_copy_begins_when_the_first_has_ended(tmp_path: Path) -> None:
    order: list[str] = []
    begun = threading.Event()

    def second() -> None:
        begun.set()
        with model_files._locked(tmp_path):
            order.append("second")

    with model_files._locked(tmp_path):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert begun.wait(DEADLINE)
        waiting.join(0.2)
        order.append("first")
    waiting.join(DEADLINE)
    assert order == ["first", "second"]


def test_a_wait_that_was_given_up_leaves_the_lock_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with model_files._locked(tmp_path):
        monkeypatch.setattr(model_files, "LOCK_SECONDS", 0.05)
        with pytest.raises(TransferFailed, match=str(tmp_path)), model_files._locked(tmp_path):
            pytest.fail("both hold the lock")
    monkeypatch.setattr(model_files, "LOCK_SECONDS", DEADLINE)
    with model_files._locked(tmp_path):
        pass


def test_a_lock_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), model_files._locked(tmp_path / "missing"):
        pytest.fail("it was locked")
