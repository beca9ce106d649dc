"""What a request's text may look like, as a mask over the vocabulary for each next token.

Lives on the leader alone, so it works the same on any number of ranks. Compiling happens off the step loop; a mask is
computed while the forward it belongs to is already running.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from chorus.engine.requests import GrammarKind
from chorus.platform.filelimit import keep_file_limit


class GrammarError(ValueError):
    """The grammar cannot be used: says what is wrong with it."""


class Constraint:
    """The state of one answer under a grammar."""

    def __init__(self, matcher: LLMatcher, vocabulary: int, stop_tokens: frozenset[int]) -> None:
        self._matcher = matcher
        self._words = allocate_token_bitmask(1, vocabulary)
        self._stop_tokens = stop_tokens
        self._raise_error()

    def mask(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """One bit per token, 32 to a word: which may come next. Valid until the next call."""
        if self._matcher.is_stopped():
            self._words.fill(0)
            self._allow_stop_tokens()
        else:
            fill_next_token_bitmask(self._matcher, self._words)
            self._raise_error()
            if self._matcher.is_accepting():
                self._allow_stop_tokens()
        return self._words[0]

    def advance(self, token: int) -> None:
        if token not in self._stop_tokens and not self._matcher.is_stopped():
            self._matcher.consume_token(token)

    def _allow_stop_tokens(self) -> None:
        for token in self._stop_tokens:
            self._words.view(np.uint32)[0, token // 32] |= np.uint32(1 << (token % 32))

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error())


class _Library:
    """What a grammar needs of transformers, imported when this is made."""

    def __init__(self) -> None:
        with keep_file_limit():
            from llguidance.hf import from_tokenizer
            from transformers import AutoTokenizer
        self.from_tokenizer, self.tokenizers = from_tokenizer, AutoTokenizer


class GrammarCompiler:
    """Compiles grammars for one model; safe to call from several threads."""

    def __init__(self, model_path: Path, vocabulary: int, trust_remote_code: bool = False) -> None:
        """Before anybody is served: importing transformers takes over a second and keeps Python's lock meanwhile, in
        which no stream would move and no front end would be answered.
        """
        self._library = _Library()
        self._model_path = model_path
        self._vocabulary = vocabulary
        self._trust_remote_code = trust_remote_code
        self._tokenizers: dict[frozenset[int], LLTokenizer] = {}
        self._lock = threading.Lock()

    def compile(self, kind: GrammarKind, source: str, stop_tokens: frozenset[int]) -> Constraint:
        tokenizer = self._tokenizer(stop_tokens)
        try:
            matcher = LLMatcher(tokenizer, _grammar(kind, source), log_level=0)
        except (ValueError, RuntimeError) as error:
            raise GrammarError(str(error)) from error
        return Constraint(matcher, self._vocabulary, stop_tokens)

    def _tokenizer(self, stop_tokens: frozenset[int]) -> LLTokenizer:
        with self._lock:  # building one takes about a second, and all requests of a model share it
            if stop_tokens not in self._tokenizers:
                self._tokenizers[stop_tokens] = self._make_tokenizer(stop_tokens)
            return self._tokenizers[stop_tokens]

    def _make_tokenizer(self, stop_tokens: frozenset[int]) -> LLTokenizer:
        found = self._library.tokenizers.from_pretrained(
            self._model_path, local_files_only=True, trust_remote_code=self._trust_remote_code
        )
        try:
            return self._library.from_tokenizer(found, n_vocab=self._vocabulary, eos_token=sorted(stop_tokens) or None)
        except ValueError as error:
            raise GrammarError(f"this model's tokenizer cannot be used with grammars: {error}") from error


def _grammar(kind: GrammarKind, source: str) -> str:
    match kind:
        case GrammarKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(source)
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(source)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(source)
        case GrammarKind.LLGUIDANCE:
            return source
