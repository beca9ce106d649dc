"""An engine that says what a test wrote down, and computes everything as if it had thought of it.

The processes of a server with this environment take sampled tokens from the script (`site/sitecustomize.py`), and note
the requests that reach the engine and the tokens that each rank is fed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

SITE = Path(__file__).parent / "site"
PARTING_TOKENS = 40
"""How much is shown on both sides of where two prompts part."""


@dataclass(frozen=True)
class Talk:
    """A conversation: the prompts that have all of `shows` in them, and the answers to the first, the second, …"""

    shows: tuple[str, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """A request that reached the engine."""

    prompt: tuple[int, ...] = field(repr=False)
    answer: tuple[int, ...] = field(repr=False)
    fed: tuple[int, ...]
    """How many tokens of the prompt each rank was fed."""

    @property
    def cached(self) -> float:
        """The part of the prompt that no rank was fed."""
        return 1 - max(self.fed) / len(self.prompt)


class ScriptedTokens:
    def __init__(self, folder: Path, model: Path, talks: list[Talk], *, turn: str, end: str) -> None:
        """`turn` opens an answer in the prompts of the model, the token `end` closes it."""
        self._folder = folder
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._end = self._tokenizer.token_to_id(end)
        script = {
            "tokenizer": str(model / "tokenizer.json"),
            "talks": [{"shows": talk.shows, "answers": talk.answers} for talk in talks],
            "turn": turn,
            "end": end,
            "aside": "A short title",
        }
        folder.mkdir()
        (folder / "script.json").write_text(json.dumps(script))

    @property
    def environment(self) -> dict[str, str]:
        path = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), "SCRIPTED_TOKENS": str(self._folder)}

    def requests(self, talk: Talk) -> list[Seen]:
        """Those of a conversation, in the order in which they came."""
        ranks = [self._fed(file) for file in sorted(self._folder.glob("fed-*.jsonl"))]
        found = []
        for entry in self._lines(self._folder / "requests.jsonl"):
            prompt, number = tuple(entry["prompt"]), entry["sequence"]
            text = self._text(prompt)
            if all(part in text for part in talk.shows):
                fed = [rank.get(number, []) for rank in ranks]
                # What a batch was fed for it with its last prompt token looks like a sampled one, and is not noted.
                assert all(tuple(own) in (prompt[len(prompt) - len(own) :], prompt[-len(own) - 1 : -1]) for own in fed)
                answer = talk.answers[len(found)] if len(found) < len(talk.answers) else ""
                tokens = self._tokenizer.encode(answer, add_special_tokens=False).ids
                found.append(Seen(prompt, (*tokens, self._end), tuple(map(len, fed))))
        return found

    def parting(self, earlier: Seen, later: Seen) -> str:
        """Where a prompt goes on otherwise than the one before it and its answer, as text."""
        read = (*earlier.prompt, *earlier.answer)
        pairs = zip(read, later.prompt, strict=False)
        same = next((place for place, (one, two) in enumerate(pairs) if one != two), len(read))
        common = self._text(later.prompt[max(same - PARTING_TOKENS, 0) : same])
        before, now = (self._text(tokens[same : same + PARTING_TOKENS]) for tokens in (read, later.prompt))
        return f"after {same} tokens, behind {common!r}:\n  before {before!r}\n  now    {now!r}"

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))

    def _fed(self, file: Path) -> dict[int, list[int]]:
        fed: dict[int, list[int]] = {}
        for step in self._lines(file):
            for sequence, tokens in step:
                fed.setdefault(sequence, []).extend(tokens)
        return fed

    def _lines(self, file: Path) -> list[Any]:
        return [json.loads(line) for line in file.read_text().splitlines()]
