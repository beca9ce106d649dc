"""A tensor group that cannot form says who or what is in the way, in bounded time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from chorus.engine.followers import CannotForm, Follower
from chorus.engine.group import _check_same_dtype
from chorus.proto import rank_pb2 as wire
from tests.support.ranks import Ranks
from tests.support.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama", vocab_size=512)


def refusal(tmp_path: Path, model: Path, count: int, **more: object) -> str:
    with Ranks(tmp_path) as ranks:
        spec = ranks.spec(model, ranks.addresses(count), parallel="tensor", transport="ring", **more)
        assert ranks.leader(spec).wait(120) == 78
        return ranks.log("leader")


def test_more_ranks_than_heads_are_refused_before_anybody_is_asked(model: Path, tmp_path: Path) -> None:
    assert "64 ranks" in refusal(tmp_path, model, 64)


def test_weights_that_fit_nothing_are_refused_by_number(model: Path, tmp_path: Path) -> None:
    assert "weights 3,1,1 are 3 for 2 ranks" in refusal(tmp_path, model, 2, weights=(3, 1, 1))


def test_a_split_is_not_for_tensor_groups(model: Path, tmp_path: Path) -> None:
    assert "give --weights instead" in refusal(tmp_path, model, 2, split=(4, 3))


def test_a_missing_rank_is_named_within_the_deadline(model: Path, tmp_path: Path) -> None:
    assert "rank 1 at 127.0.0.1:" in refusal(tmp_path, model, 2, start_timeout_seconds=2)


def test_ranks_that_chose_different_number_types_are_named() -> None:
    other = Follower(1, "127.0.0.1:9", loaded=wire.Loaded(dtype="bfloat16"))
    own = SimpleNamespace(policy=SimpleNamespace(dtype="float32"))
    with pytest.raises(CannotForm, match=r"rank 0 uses float32, but rank 1 at 127.0.0.1:9 uses bfloat16"):
        _check_same_dtype(own, [other])  # type: ignore[arg-type]
