"""The vocabulary that masks are over, from a model's files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper

from chorus.messages.grammar import GrammarError
from chorus.text.errors import TokenizerError, one_line
from chorus.text.stop_tokens import named_stop_tokens, read_settings

_SPELL_SECONDS = 120.0
_SETS_KEPT = 4
_ADDED_TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


class Vocabularies:
    """The vocabulary once for each set of tokens that may end an answer; a model's requests share one or two."""

    def __init__(self, model_path: Path, size: int, trust_remote_code: bool) -> None:
        self._model_path = model_path
        self._size = size
        self._trust_remote_code = trust_remote_code
        self._source: str | TokenizerWrapper | None = None
        self._made: dict[frozenset[int], LLTokenizer] = {}
        self._unusable = ""

    def ending_with(self, stop_tokens: frozenset[int]) -> LLTokenizer:
        """Raises GrammarError where the model's tokenizer cannot be used with grammars; it is tried once."""
        if self._unusable:
            raise GrammarError(self._unusable)
        if stop_tokens not in self._made:
            while len(self._made) >= _SETS_KEPT:
                del self._made[next(iter(self._made))]
            try:
                self._made[stop_tokens] = self._make(sorted(stop_tokens) or None)
            except (ValueError, OSError, subprocess.SubprocessError, TokenizerError) as error:
                self._unusable = f"this model's tokenizer cannot be used with grammars: {one_line(error)}"
                raise GrammarError(self._unusable) from error
        return self._made[stop_tokens]

    def _make(self, stop_tokens: list[int] | None) -> LLTokenizer:
        if self._source is None:
            try:
                text = tokenizer_text(self._model_path)
                made = LLTokenizer(text, n_vocab=self._size, eos_token=stop_tokens)
                self._source = text
                return made
            except (OSError, ValueError):  # there is none, or none that can be used
                self._source = spelled(self._model_path, self._size, self._trust_remote_code)
        return LLTokenizer(self._source, n_vocab=self._size, eos_token=stop_tokens)


def usual_stop_tokens(model_path: Path) -> frozenset[int]:
    """What front ends will most likely end this model's answers with: those that its settings name, by number or name.
    Another set only costs the first request that has it the time to build a vocabulary."""
    named = read_settings(model_path / "tokenizer_config.json").get("eos_token")
    name = named.get("content") if isinstance(named, dict) else named
    added = read_settings(model_path / "tokenizer.json").get("added_tokens") or []
    by_name = {entry["id"] for entry in added if entry["content"] == name}
    return named_stop_tokens(model_path) | by_name


def tokenizer_text(model_path: Path) -> str:
    """tokenizer.json, with the added tokens that only tokenizer_config.json names."""
    tokenizer = json.loads((model_path / "tokenizer.json").read_text(encoding="utf-8"))
    added: list[dict[str, Any]] = tokenizer.get("added_tokens") or []
    known = {entry["id"] for entry in added}
    named = read_settings(model_path / "tokenizer_config.json").get("added_tokens_decoder") or {}
    added += [{**_ADDED_TOKEN, **entry, "id": int(token)} for token, entry in named.items() if int(token) not in known]
    added.sort(key=lambda entry: entry["id"])
    return json.dumps({**tokenizer, "added_tokens": added, "truncation": None, "padding": None})


class Spelled:
    """A tokenizer of which only the tokens are known."""

    bos_token_id = None
    eos_token_id = 0

    def __init__(self, tokens: list[bytes], special: list[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self._ids = {token: place for place, token in enumerate(tokens) if token and place not in set(special)}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """The longest token that fits, again and again: for text that is the only one a grammar allows."""
        found: list[int] = []
        while text:
            fitting = (text[:length] for length in range(self._longest, 0, -1) if text[:length] in self._ids)
            if (token := next(fitting, None)) is None:
                break
            found.append(self._ids[token])
            text = text[len(token) :]
        return found


def spelled(model_path: Path, size: int, trust_remote_code: bool) -> str | TokenizerWrapper:
    """What a program says that may load whatever the model's tokenizer needs: its file, or its tokens' bytes."""
    command = [sys.executable, "-m", "chorus.text.grammar.spell", str(model_path), str(int(trust_remote_code))]
    done = subprocess.run(command, capture_output=True, timeout=_SPELL_SECONDS)
    if done.returncode != 0:
        reasons = done.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(reasons[-1] if reasons else f"reading it ended with {done.returncode}")
    told = json.loads(done.stdout)
    if told["file"] is not None:
        return str(told["file"])
    tokens = [bytes.fromhex(token) for token in told["tokens"]][:size]
    tokens += [b""] * (size - len(tokens))
    return TokenizerWrapper(Spelled(tokens, [token for token in told["special"] if token < size]))
