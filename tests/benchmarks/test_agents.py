from __future__ import annotations

from random import Random

import pytest

from benchmarks.agents import Fed, Shape, common_beginning, write_script
from benchmarks.models import write_word_tokenizer
from benchmarks.prompts import Prompts
from benchmarks.steps import fed_tokens

SHAPE = Shape(turns=3, system=20, tools=2, task=8, result=(4, 8))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Prompts:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_word_tokenizer(folder, 4096)
    return Prompts(folder, seed=1)


def test_every_agent_has_a_task_and_a_result_for_each_later_turn(prompts: Prompts) -> None:
    script = write_script(prompts, SHAPE, Random(1))
    assert [len(said) for said in script.said] == [3, 3]
    assert len({text for said in script.said for text in said}) == 6
    assert len(script.tools) == 2


def test_no_two_scripts_begin_alike(prompts: Prompts) -> None:
    first, second = (write_script(prompts, SHAPE, Random(1)) for _ in range(2))
    assert first.system.split()[0] != second.system.split()[0]


def test_only_what_comes_after_the_longest_beginning_is_fresh() -> None:
    fed = Fed()
    assert fed.fresh([1, 2, 3, 4], [5, 6]) == 4
    assert fed.fresh([1, 2, 9], [7]) == 1
    # The answer's last token was never fed.
    assert fed.fresh([1, 2, 3, 4, 5, 6, 8], [7]) == 2


def test_a_prompt_that_was_fed_whole_still_needs_one_token() -> None:
    fed = Fed()
    fed.fresh([1, 2, 3], [4, 5])
    assert fed.fresh([1, 2, 3], [4, 5]) == 1
    assert fed.fresh([1, 2], [3]) == 1


@pytest.mark.parametrize(("one", "other", "length"), [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2], [1, 3], 1)])
def test_a_common_beginning_ends_at_the_first_difference(one: list[int], other: list[int], length: int) -> None:
    assert common_beginning(one, other) == length


def test_tokens_of_all_kinds_of_steps_are_counted() -> None:
    assert fed_tokens([{"kind": "prefill", "tokens": 512}, {"kind": "decode", "tokens": 2}]) == 514
