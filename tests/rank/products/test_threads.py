from __future__ import annotations

from pathlib import Path

import pytest

from chorus import platform
from chorus.platform.cpu import blas, trials
from chorus.rank.load import load_shard
from chorus.rank.products import threads
from chorus.rank.products.threads import kernel_threads, share_threads
from tests.support.tiny_model import write_tiny_model


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What a BLAS of four threads is told to use."""
    told = [4]
    monkeypatch.setattr(platform, "rank_threads", lambda: 4)
    monkeypatch.setattr(blas, "get_threads", lambda: told[-1])
    monkeypatch.setattr(blas, "set_threads", told.append)
    return told


def test_the_fastest_number_is_kept_and_the_next_model_tries_them_all_again(
    given: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "choose", lambda seconds, most: min(seconds))
    for _ in range(2):
        del given[1:]
        share_threads()
        assert set(given[1:-1]) == {4, 3, 2, 1}
        assert given[-1] == 1


def test_a_model_that_is_not_packed_has_all_threads_again(given: list[int], tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model", "llama", quantize={"bits": 4, "group_size": 32}, tokenizer=False)
    load_shard(path, range, policy="float32, packed")
    given.append(1)
    load_shard(path, range, policy="float32, unpacked")
    assert given[-1] == 4


def test_a_blas_without_threads_is_left_alone(given: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "get_threads", lambda: None)
    share_threads()
    assert given == [4]


def test_kernels_have_the_threads_that_were_given_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "rank_threads", lambda: 2)
    monkeypatch.setattr(trials, "medians", lambda *_: pytest.fail("tried"))
    assert kernel_threads() == 2


def test_kernels_that_may_have_more_threads_try_them(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr(platform, "rank_threads", lambda: 1)
    monkeypatch.setattr(platform, "most_threads", lambda: 2)
    monkeypatch.setattr(platform, "use_threads", used.append)
    # Threads of their own they can have only before the first kernel of a process.
    monkeypatch.setattr(threads, "_product", lambda number: lambda rows: None)
    monkeypatch.setattr(trials, "choose", lambda seconds, usual: max(seconds))
    assert kernel_threads() == 2
    assert used == [2]
