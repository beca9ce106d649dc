"""A script that obeys: it draws tokens which the request's grammar allows, and brings the text to an end."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from transformers import AutoTokenizer

from chorus.messages.engine import grammar_from_wire
from chorus.messages.proto import engine_pb2 as pb
from chorus.text.grammar.forms import llguidance_form
from tests.api.scripted_engine import Run, Script, say

_CLOSING = '"]}>/'


def grammar_tokenizer(folder: str) -> LLTokenizer:
    return from_tokenizer(AutoTokenizer.from_pretrained(folder, local_files_only=True))


def compiled(grammar: pb.Grammar) -> str:
    read = grammar_from_wire(grammar)
    return llguidance_form(read.kind, read.source, read.parts)


def obey(tokenizer: LLTokenizer, unbound: Sequence[int] = ()) -> Script:
    """Without a grammar it says the `unbound` tokens."""

    def script(run: Run) -> None:
        if not run.submit.HasField("grammar"):
            say(unbound)(run)
            return
        tokens, ended = draw(tokenizer, run.submit)
        say(tokens, pb.STOP if ended else pb.LENGTH)(run)

    return script


def draw(tokenizer: LLTokenizer, submit: pb.Submit) -> tuple[list[int], bool]:
    matcher = LLMatcher(tokenizer, compiled(submit.grammar))
    assert not matcher.is_error(), matcher.get_error()
    rng = random.Random(json.dumps([submit.sampling.seed, submit.grammar.source]))
    drawn: list[int] = []
    while len(drawn) < submit.max_tokens:
        allowed = _allowed(matcher, tokenizer)
        ending = [token for token in allowed if token in set(submit.stop_tokens)]
        if ending or not allowed:
            return drawn, True
        if way_out := _end_of_reasoning(tokenizer.decode_str(drawn)):
            fitting = [token for token in allowed if way_out.startswith(tokenizer.decode_str([token]))]
            allowed = sorted(fitting, key=lambda token: len(tokenizer.decode_str([token])))[-1:] or allowed
        closing = [token for token in allowed if tokenizer.decode_str([token]).strip() in tuple(_CLOSING)]
        token = rng.choice(closing or allowed)
        assert matcher.consume_token(token)
        drawn.append(token)
    return drawn, False


def _end_of_reasoning(text: str) -> str:
    """What is still to be said to close reasoning that is open; it would go on for ever otherwise."""
    if "<think>" not in text or "</think>" in text:
        return ""
    tag = "</think>"
    return next(tag[length:] for length in range(len(tag) - 1, -1, -1) if text.endswith(tag[:length]))


def _allowed(matcher: LLMatcher, tokenizer: LLTokenizer) -> list[int]:
    mask = allocate_token_bitmask(1, tokenizer.vocab_size)
    fill_next_token_bitmask(matcher, mask)
    return [token for token in range(tokenizer.vocab_size) if mask[0][token // 32] >> (token % 32) & 1]
