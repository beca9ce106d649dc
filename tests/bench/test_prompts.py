from __future__ import annotations

import random

import pytest

from chorus.bench.prompts import REQUEST, Scale, Words, fitted


def test_two_prompts_tell_how_many_tokens_words_and_the_rest_are() -> None:
    assert fitted((4, 40), (100, 232)) == Scale(per_word=2.0, overhead=32.0)


@pytest.mark.parametrize("many", [(100, 40), (4, 400), (100, 12)])
def test_counts_that_cannot_be_leave_the_usual_scale(many: tuple[int, int]) -> None:
    assert fitted((4, 40), many) == Scale()


@pytest.mark.parametrize(("tokens", "words"), [(1024, 496), (32, 1), (1, 1)])
def test_a_prompt_has_the_words_that_make_its_tokens_and_at_least_one(tokens: int, words: int) -> None:
    assert Scale(per_word=2.0, overhead=32.0).words_for(tokens) == words


def test_prompts_differ_from_their_first_word_and_ask_for_a_long_answer() -> None:
    words = Words(random.Random(1))
    made = [words.prompt(3) for _ in range(50)]
    assert len({prompt.split()[0] for prompt in made}) == 50
    assert all(prompt.endswith(REQUEST) for prompt in made)


def test_prompts_begin_with_what_they_share() -> None:
    assert Words().prompt(2, "once upon").startswith("once upon ")


def test_words_are_other_ones_in_every_run() -> None:
    assert Words().some(8) != Words().some(8)
