from __future__ import annotations

from typing import Any

import pytest

from chorus.models.description import context_length, text_config, vocabulary


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096.0}, 4096),
        ({"max_position_embeddings": None, "n_positions": 1024}, 1024),
        ({"max_position_embeddings": 4096, "text_config": {"max_position_embeddings": 512}}, 512),
        ({"max_position_embeddings": 4096, "text_config": {"max_position_embeddings": None}}, 4096),
        ({"max_position_embeddings": 4096, "text_config": None}, 4096),
        ({"max_position_embeddings": None}, 2048),
        ({"max_position_embeddings": "long"}, 2048),
        ({"max_position_embeddings": True}, 2048),
        ({"max_position_embeddings": -1}, 2048),
        ({"max_position_embeddings": float("inf")}, 2048),
        ({}, 2048),
    ],
    ids=str,
)
def test_the_context_is_what_a_configuration_says_in_whatever_form(config: dict[str, Any], expected: int) -> None:
    assert context_length(config) == expected


def test_a_shorter_context_may_be_asked_for_and_a_longer_one_where_none_is_stated() -> None:
    assert context_length({"max_position_embeddings": 4096}, 1000) == 1000
    assert context_length({"max_position_embeddings": 4096}, 9000) == 4096
    assert context_length({"max_position_embeddings": None}, 9000) == 9000


def test_a_vocabulary_is_found_in_either_part() -> None:
    assert vocabulary({"vocab_size": 10}) == 10
    assert vocabulary({"vocab_size": 10, "text_config": {"vocab_size": 20}}) == 20
    assert vocabulary({"vocab_size": 10, "text_config": {"vocab_size": None}}) == 10
    assert vocabulary({"vocab_size": None, "text_config": []}) == 0


def test_the_decoders_own_part_goes_over_what_stands_around_it() -> None:
    assert text_config({"a": 1, "b": 2, "c": None, "text_config": {"b": 3, "a": None}}) == {
        "a": 1,
        "b": 3,
        "text_config": {"b": 3, "a": None},
    }
