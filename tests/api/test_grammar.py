"""Grammars on their own: composed, and obeyed by a script."""

from __future__ import annotations

import json

import pytest
from llguidance import LLTokenizer

from chorus.messages.engine import Request, Sampling, request_to_wire
from chorus.messages.grammar import Grammar
from chorus.serving.requests import grammar as grammars
from chorus.text.parsers import Content, choose, merged
from chorus.text.tokenizer import Tokenizer
from tests.api.grammar_engine import draw

SCHEMA = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}


def drawn(tokens: LLTokenizer, tokenizer: Tokenizer, grammar: Grammar, seed: int) -> str:
    request = Request("1", (1,), 400, tokenizer.eos_ids, Sampling(seed=seed), grammar=grammar)
    text, ended = draw(tokens, request_to_wire(request))
    assert ended
    return tokenizer.decode(text, skip_special=False)


@pytest.mark.parametrize("seed", range(4))
def test_a_document_in_the_final_channel_is_read_as_content(
    grammar_tokens: LLTokenizer, tokenizer: Tokenizer, seed: int
) -> None:
    text = drawn(grammar_tokens, tokenizer, grammars.in_final_channel(grammars.json_schema(SCHEMA), {}), seed)
    assert "<|channel|>final<|message|>" in text
    parser = choose(None, "harmony").new(tools=None, thinks=True, starts_in_reasoning=False, id_factory=lambda: "1")
    (piece,) = merged([*parser.push(text), *parser.flush()])
    assert isinstance(piece, Content)
    assert set(json.loads(piece.text)) == {"x"}


def test_compositions_can_be_composed_again(grammar_tokens: LLTokenizer, tokenizer: Tokenizer) -> None:
    document = grammars.in_final_channel(grammars.json_schema(SCHEMA), {})
    grammar = grammars.after_reasoning(
        grammars.either(grammars.regex(r"a/b\/yes"), document), ("<think>", "</think>"), {}, already_open=False
    )
    for seed in range(6):
        text = drawn(grammar_tokens, tokenizer, grammar, seed)
        assert text.endswith(("a/b/yes", "}"))
