"""Who holds what, for pipelines, tensor groups and both at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from chorus.cli.plan import plan
from chorus.config.engine import EngineSpec
from chorus.config.sources import load_settings
from chorus.deploy.programs import CannotLaunch, rank_programs
from chorus.planning.layout import Layout, check_transport, shape
from chorus.planning.split import SplitError
from chorus.transport.auto import choose_transport
from chorus.transport.catalog import hybrid_note
from tests.support.tiny_model import write_tiny_model


def test_a_pipeline_is_a_layout_with_one_rank_in_each_stage() -> None:
    layout = Layout((20, 7, 3))
    assert [layout.place(rank).layers for rank in range(3)] == [range(10, 30), range(3, 10), range(3)]
    assert [(p.previous_rank, p.next_rank) for p in map(layout.place, range(3))] == [(1, None), (2, 0), (None, 1)]


def test_a_tensor_group_is_a_layout_with_one_stage() -> None:
    layout = Layout((30,), (2, 1))
    places = [layout.place(rank) for rank in range(2)]
    assert [place.layers for place in places] == [range(30)] * 2
    assert [place.member for place in places] == [0, 1]
    assert all(place.previous_rank is None and place.next_rank is None for place in places)


def test_ranks_of_a_hybrid_are_numbered_stage_by_stage_and_pass_on_to_their_like() -> None:
    layout = Layout((20, 7, 3), (2, 1))
    places = [layout.place(rank) for rank in range(layout.ranks)]
    assert [(place.stage, place.member) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [place.layers for place in places[::2]] == [range(10, 30), range(3, 10), range(3)]
    assert [place.next_rank for place in places] == [None, None, 0, 1, 2, 3]
    assert [place.previous_rank for place in places] == [2, 3, 4, 5, None, None]
    assert list(layout.stage_ranks(1)) == [2, 3]


@pytest.mark.parametrize(
    ("parallel", "ranks", "split", "weights", "expected"),
    [
        ("pipeline", 3, (20, 7, 3), None, (3, 1)),
        ("tensor", 2, None, (2, 1), (1, 2)),
        ("hybrid", 4, (20, 10), None, (2, 2)),
        ("hybrid", 6, None, (2, 1), (3, 2)),
        ("hybrid", 6, (20, 10), (1, 1, 1), (2, 3)),
    ],
)
def test_the_number_of_stages_and_of_ranks_in_each_follows_from_what_is_given(
    parallel: str,
    ranks: int,
    split: tuple[int, ...] | None,
    weights: tuple[int, ...] | None,
    expected: tuple[int, int],
) -> None:
    assert shape(parallel, ranks, split, weights) == expected


@pytest.mark.parametrize(
    ("ranks", "split", "weights", "error"),
    [
        (5, (20, 10), None, "5 ranks are no multiple of 2, and split 20,10 names 2 stages: use 4 or 6 ranks"),
        (4, None, (1, 1, 1), "4 ranks are no multiple of 3, and weights 1,1,1 name 3 ranks for each stage"),
        (4, (20, 10), (1, 1, 1), "2 stages of 3 ranks, 6 in all, where there are 4"),
        (4, None, None, "needs --split with the layers of each stage, or --weights"),
        (2, None, (1, 1), "this is 1 of 2: use --parallel tensor"),
        (2, (20, 10), None, "this is 2 of 1: use --parallel pipeline"),
    ],
)
def test_a_hybrid_that_does_not_come_out_even_says_what_would(
    ranks: int, split: tuple[int, ...] | None, weights: tuple[int, ...] | None, error: str
) -> None:
    with pytest.raises(SplitError, match=error):
        shape("hybrid", ranks, split, weights)


@pytest.mark.parametrize("transport", ["ring", "grpc", "jaccl", "nccl"])
def test_transports_that_cannot_carry_a_hybrid_are_refused_by_name(transport: str) -> None:
    with pytest.raises(SplitError, match=f"cannot use {transport}: .*use --transport mpi"):
        check_transport("hybrid", transport)
    assert transport in hybrid_note()


def test_nccl_is_refused_for_pipelines_and_grpc_for_tensor_groups() -> None:
    with pytest.raises(SplitError, match="nccl cannot pass activations"):
        check_transport("pipeline", "nccl")
    with pytest.raises(SplitError, match="grpc makes no group"):
        check_transport("tensor", "grpc")
    check_transport("hybrid", "mpi")


def test_split_and_weights_say_how_many_ranks_a_hybrid_has() -> None:
    engine = {"parallel": "hybrid", "split": "20,10", "weights": "2,1"}
    assert load_settings(None, {"engine": engine}).engine.ranks == 4
    assert choose_transport("auto", "hybrid") == "mpi"


def _hybrid(tmp_path: Path, *ranks: str) -> EngineSpec:
    division = {"parallel": "hybrid", "transport": "mpi", "split": (5, 2)}
    return EngineSpec(address="unix:/nowhere", model_path=tmp_path, ranks=ranks, **division)  # type: ignore[arg-type]


def test_a_hybrid_that_cannot_be_is_refused_before_any_process_starts(tmp_path: Path) -> None:
    with pytest.raises(CannotLaunch, match="3 ranks are no multiple of 2"):
        rank_programs(_hybrid(tmp_path, "unix:a", "unix:b", "unix:c"))
    with pytest.raises(CannotLaunch, match="over several machines use --parallel pipeline or tensor"):
        rank_programs(_hybrid(tmp_path, "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1"))


def planned(model: Path, *arguments: str) -> Result:
    app = typer.Typer()
    app.command()(plan)
    return CliRunner().invoke(app, [str(model), "--prompt", "64", "--output", "32", *arguments], env={"COLUMNS": "400"})


def test_plan_says_which_transports_allow_a_hybrid_when_asked_and_where_it_would_help(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", "llama")
    equal = ("--nodes", "8GB:10,8GB:10,8GB:10,8GB:10")
    assert hybrid_note() in planned(model, *equal, "--parallel", "hybrid").output
    assert hybrid_note() in planned(model, *equal, "--strategy", "uniform").output
    assert "hybrid" not in planned(model, "--nodes", "8GB:10,8GB:10", "--strategy", "uniform").output
    assert "hybrid" not in planned(model, "--nodes", "8GB:10,8GB:10,8GB:10,9GB:10", "--strategy", "uniform").output
