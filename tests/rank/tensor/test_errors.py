from __future__ import annotations

from typing import Any

import pytest
from mlx import nn

from chorus.planning.split import SplitError
from chorus.rank.tensor.divide import Imagined, TensorPlan, check, shard_model
from tests.support.architectures import ARCHITECTURES, build

LLAMA: dict[str, Any] = {**ARCHITECTURES["llama"], "num_attention_heads": 9, "num_key_value_heads": 3}


def test_check_returns_the_weights_of_the_plan() -> None:
    assert check(LLAMA, 2, (2, 1)) == (2, 1)
    assert check(LLAMA, 2) == (2, 1)
    assert check(LLAMA, 3) == (1, 1, 1)
    assert check(LLAMA, 1) == (1,)


def test_more_ranks_than_groups_is_refused_with_the_number_that_fits() -> None:
    with pytest.raises(SplitError, match="3 key/value groups of 3 heads: give at most 3 ranks"):
        check(LLAMA, 4)


def test_weights_that_do_not_sum_to_a_divisor_of_the_groups_are_refused() -> None:
    with pytest.raises(SplitError, match=r"weights 3,2 make 5 parts .* 3 key/value groups: weights 2,1 would fit"):
        check(LLAMA, 2, (3, 2))


def test_weights_for_another_number_of_ranks_are_refused() -> None:
    with pytest.raises(SplitError, match="weights 2,1 are 2 for 3 ranks"):
        check(LLAMA, 3, (2, 1))


@pytest.mark.parametrize("weights", [(3, 0), (4, -1)])
def test_weights_below_one_are_refused(weights: tuple[int, ...]) -> None:
    with pytest.raises(SplitError, match="at least 1"):
        check(LLAMA, 2, weights)


def test_an_architecture_that_nobody_can_divide_names_the_pipeline() -> None:
    with pytest.raises(SplitError, match="mamba cannot be divided inside its layers: use --parallel pipeline"):
        check(ARCHITECTURES["mamba"], 2)


def test_an_architecture_that_only_divides_evenly_refuses_other_weights() -> None:
    assert check(ARCHITECTURES["deepseek_v2"], 2) == (1, 1)
    with pytest.raises(SplitError, match=r"deepseek_v2 can only be divided evenly.*leave out the weights"):
        check(ARCHITECTURES["deepseek_v2"], 2, (3, 1))


def test_heads_that_do_not_divide_evenly_are_refused_before_upstream_rounds_them_down() -> None:
    with pytest.raises(SplitError, match="num_key_value_heads of 2 is no multiple of 4 ranks"):
        check(ARCHITECTURES["exaone_moe"], 4)


def test_sizes_that_do_not_divide_evenly_are_refused_from_the_configuration() -> None:
    config = {**ARCHITECTURES["exaone_moe"], "num_attention_heads": 6, "num_key_value_heads": 3}
    with pytest.raises(SplitError, match="exaone_moe does not divide evenly by 3 ranks"):
        check(config, 3)


def test_a_group_of_another_size_than_the_plan_is_refused() -> None:
    with pytest.raises(SplitError, match="rank 0 of 3 where the plan says 0 of 2"):
        shard_model(build("llama"), ARCHITECTURES["llama"], TensorPlan(0, (1, 1)), Imagined(0, 3))


def test_a_parameter_that_no_rule_knows_is_refused() -> None:
    model = build("llama")
    model.layers[1].mlp.extra_proj = nn.Linear(64, 128)
    with pytest.raises(SplitError, match=r"no rule divides model\.layers\.1\.mlp\.extra_proj"):
        shard_model(model, ARCHITECTURES["llama"], TensorPlan(0, (1, 1)), Imagined(0, 2))
