"""Prompts of a known length, no two alike from the first word on: no server can answer one from a cache."""

from __future__ import annotations

import random
import string
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

FIRST_PLAIN_TOKEN = 1000
"""Special tokens and single bytes lie below it in every vocabulary that is measured."""


class Prompts:
    """An endless supply for one model, the same for the same seed."""

    def __init__(self, model: Path, seed: int) -> None:
        self._tokenizer = _tokenizer(model)
        self._random = random.Random(seed)

    def of(self, tokens: int) -> str:
        """About this many tokens; the server's own count is what gets reported."""
        words: list[str] = []
        count = 0
        while count < tokens:
            word = ("" if not words else " ") + "".join(self._random.choices(string.ascii_lowercase, k=4))
            length = len(self._tokenizer.encode(word, add_special_tokens=False).ids)
            if count + length > tokens and words:
                break
            words.append(word)
            count += length
        return "".join(words)

    def several(self, number: int, tokens: int) -> list[str]:
        return [self.of(tokens) for _ in range(number)]


class TokenPrompts:
    """Prompts as token ids: no two have even their first token in common."""

    def __init__(self, model: Path, seed: int) -> None:
        self._tokenizer = _tokenizer(model)
        self._random = random.Random(seed)
        self._plain = range(FIRST_PLAIN_TOKEN, self._tokenizer.get_vocab_size())
        self._firsts = iter(self._random.sample(self._plain, len(self._plain)))

    def of(self, tokens: int) -> list[int]:
        return [next(self._firsts), *self._random.choices(self._plain, k=tokens - 1)]

    def several(self, number: int, tokens: int) -> list[list[int]]:
        return [self.of(tokens) for _ in range(number)]

    def text(self, prompt: list[int]) -> str:
        """For whoever takes no ids; a word tokenizer (`models.write_word_tokenizer`) finds the same ones in it."""
        return str(self._tokenizer.decode(prompt))


@lru_cache
def _tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))
