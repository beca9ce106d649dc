"""A tensor group that cannot form says who or what is in the way, in bounded time."""

from __future__ import annotations

from pathlib import Path

import pytest

from chorus.engine.lifecycle.group import _check_dtypes
from chorus.engine.ranks.followers import CannotForm, Follower
from chorus.messages.load import Loaded
from chorus.planning.layout import Layout
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
    other = Follower(1, "127.0.0.1:9", loaded=Loaded(dtype="bfloat16"))
    with pytest.raises(CannotForm, match=r"rank 0 uses float32, but rank 1 at 127.0.0.1:9 uses bfloat16"):
        _check_dtypes(Layout((6,), (1, 1)), "float32", [other])


def test_stages_may_differ_in_their_number_type_but_not_the_ranks_of_one() -> None:
    def followers(*dtypes: str) -> list[Follower]:
        return [Follower(rank, f"127.0.0.1:{rank}", loaded=Loaded(dtype=d)) for rank, d in enumerate(dtypes, 1)]

    layout = Layout((3, 3), (1, 1))
    _check_dtypes(layout, "float32", followers("float32", "bfloat16", "bfloat16"))
    with pytest.raises(CannotForm, match=r"rank 2 at .* uses bfloat16, but rank 3 at .* uses float32"):
        _check_dtypes(layout, "float32", followers("float32", "bfloat16", "float32"))
    _check_dtypes(Layout((3, 3)), "float32", followers("bfloat16"))
