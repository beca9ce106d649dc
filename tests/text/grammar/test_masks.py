"""What a child says may come next is what the library says in one's own process, to the last bit."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.hf import from_tokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from transformers import AutoTokenizer

from chorus.messages.grammar import Grammar
from chorus.serving.requests import grammar as grammars
from chorus.text.grammar.vocabulary import Spelled
from tests.support.grammars import GrammarHost
from tests.text.grammar.conftest import PATIENT, STOPS, VOCABULARY

OBJECT = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "size": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["name", "size"],
}
TREE = {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 3}}, "$ref": "#/$defs/n"}
GBNF = 'root ::= "a" digit+ ("," root)?\ndigit ::= [0-9]'

IN_ONE_PROCESS = {
    "an object": (grammars.json_schema(OBJECT), LLMatcher.grammar_from_json_schema(json.dumps(grammars.tidy(OBJECT)))),
    "a tree": (grammars.json_schema(TREE), LLMatcher.grammar_from_json_schema(json.dumps(grammars.tidy(TREE)))),
    "a regular expression": (grammars.regex(r"[a-c]{2,9}/\d+"), LLMatcher.grammar_from_regex(r"[a-c]{2,9}/\d+")),
    "choices": (grammars.one_of(["yes", "nö"]), LLMatcher.grammar_from_lark('start: "yes" | "nö"')),
    "rules": (grammars.rules(GBNF), LLMatcher.grammar_from_lark('start: "a" DIGIT+ ("," start)?\nDIGIT: /[0-9]/')),
    "one of two": (
        grammars.either(grammars.regex("x+"), grammars.json_schema(OBJECT)),
        json.dumps(
            {
                "grammars": [
                    {"lark_grammar": "start: @one | @two"},
                    {"name": "one", "lark_grammar": "start: /x+/"},
                    {"name": "two", "json_schema": grammars.tidy(OBJECT)},
                ]
            }
        ),
    ),
}


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> LLTokenizer:
    loaded = AutoTokenizer.from_pretrained(model, local_files_only=True)
    return from_tokenizer(loaded, n_vocab=VOCABULARY, eos_token=sorted(STOPS))


def allowed(mask: np.ndarray) -> list[int]:
    return [int(token) for token in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]


@pytest.mark.parametrize("name", IN_ONE_PROCESS)
def test_a_walk_meets_the_same_masks_as_in_one_process(host: GrammarHost, tokenizer: LLTokenizer, name: str) -> None:
    grammar, compiled = IN_ONE_PROCESS[name]
    for seed in range(3):
        random, steps = Random(seed), 0
        matcher, words = LLMatcher(tokenizer, compiled), allocate_token_bitmask(1, VOCABULARY)
        constraint = host.open(grammar, STOPS)
        while steps < 60:
            fill_next_token_bitmask(matcher, words)
            mask = constraint.mask(time.monotonic())
            assert np.array_equal(mask, words[0])
            token = random.choice(allowed(mask))
            if token in STOPS:
                break
            matcher.consume_token(token)
            constraint.advance(token)
            steps += 1
        assert steps
        constraint.close()


def test_a_text_that_is_complete_may_only_end(host: GrammarHost, tokenizer: LLTokenizer) -> None:
    constraint = host.open(Grammar("regex", "yes"), STOPS)
    for token in tokenizer.tokenize_str("yes"):
        constraint.advance(token)
        mask = constraint.mask(time.monotonic())
    assert allowed(mask) == sorted(STOPS)
    constraint.close()


def test_a_model_without_a_tokenizer_file_is_read_all_the_same(model: Path, host: GrammarHost, tmp_path: Path) -> None:
    """As older models are: a vocabulary and its merges, which only their own tokenizer class can read."""
    described = json.loads((model / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(described["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in described["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|im_end|>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2TokenizerFast", **names}))
    with GrammarHost(tmp_path, VOCABULARY, PATIENT) as other:
        pairs = [there.open(grammars.regex("[a-d]{3} é"), STOPS) for there in (host, other)]
        random = Random(1)
        while True:
            masks = [constraint.mask(time.monotonic()) for constraint in pairs]
            assert np.array_equal(*masks)
            if (token := random.choice(allowed(masks[0]))) in STOPS:
                break
            for constraint in pairs:
                constraint.advance(token)
        for constraint in pairs:
            constraint.close()


def test_tokens_alone_make_a_vocabulary(tokenizer: LLTokenizer) -> None:
    """For tokenizers that are a Python class: forced text is spelled by the longest tokens."""
    tokens = [b"" if token in STOPS else tokenizer.decode_bytes([token]) for token in range(VOCABULARY)]
    alone = LLTokenizer(TokenizerWrapper(Spelled(tokens, [0, 1, 2])), n_vocab=VOCABULARY, eos_token=sorted(STOPS))
    matchers = [LLMatcher(known, LLMatcher.grammar_from_regex("[a-d]{3} yé")) for known in (tokenizer, alone)]
    words, random = [allocate_token_bitmask(1, VOCABULARY) for _ in matchers], Random(2)
    spoken: list[int] = []
    while not spoken or spoken[-1] not in STOPS:
        for matcher, mask in zip(matchers, words, strict=True):
            fill_next_token_bitmask(matcher, mask)
            assert not matcher.is_error(), matcher.get_error()
        token = random.choice(allowed(words[1][0]))
        assert token in allowed(words[0][0])
        spoken.append(token)
        for matcher in matchers:
            matcher.consume_token(token)
    assert tokenizer.decode_str(spoken[:-1]).endswith(" yé")
