"""Prompts that no server has seen before, of about a wanted length: no answer comes out of a cache by chance."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

REQUEST = "Write a very long story."
"""What every prompt ends with: an answer should not be over before its tokens are."""
_LETTERS = 4


@dataclass(frozen=True)
class Scale:
    """How many tokens a server makes of a prompt, found by asking it."""

    per_word: float = 2.2
    overhead: float = 12.0
    """What a prompt has besides its words: the request, and the marks of a chat template."""

    def words_for(self, tokens: int) -> int:
        """For a whole prompt; it has at least a word of its own."""
        return max(1, round((tokens - self.overhead) / self.per_word))

    def words_beside(self, tokens: int) -> int:
        """For so many tokens on top of a prompt."""
        return round(tokens / self.per_word)


def fitted(few: tuple[int, int], many: tuple[int, int]) -> Scale:
    """The scale of two prompts whose words and tokens are known; the usual one for a server that counts oddly."""
    words, tokens = many[0] - few[0], many[1] - few[1]
    if words <= 0 or tokens <= 0:
        return Scale()
    per_word = tokens / words
    return Scale(per_word, max(0.0, few[1] - per_word * few[0]))


class Words:
    """An endless supply, other ones each time the program is run."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self._chance = chance or random.Random()

    def some(self, number: int) -> str:
        return " ".join("".join(self._chance.choices(string.ascii_lowercase, k=_LETTERS)) for _ in range(number))

    def prompt(self, number: int, begin: str = "") -> str:
        """So many words and the request, after what prompts share."""
        return " ".join(filter(None, (begin, self.some(number), REQUEST)))
