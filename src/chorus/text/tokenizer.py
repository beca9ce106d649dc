"""A model's tokenizer: text to tokens and back, chat templates, and the tokens that end a turn."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError as JinjaError

from chorus.text.detokenizer import PieceDecoder, StreamDecoder, WindowDecoder
from chorus.text.errors import REMEDY, TemplateError, TextError, TokenizerError, one_line
from chorus.text.stop_tokens import named_stop_tokens, token_ids
from chorus.text.vocabulary import (
    ByteFallback,
    Spelling,
    TokenPieces,
    recognise,
    spell_byte_fallback,
    spell_byte_level,
)

# A template runs on what the client sent, so whatever it trips over is about the request.
_RENDERING_ERRORS = (JinjaError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Tokenizer:
    """Made by `load`. Encoding and decoding keep no state; every stream of tokens gets a decoder of its own."""

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._backend = _plain_backend(tokenizer)
        self._hidden = frozenset(tokenizer.all_special_ids)
        self._spelling = None if self._backend is None else recognise(_decoder_spec(self._backend))
        self._pieces = {skip: self._token_pieces(self._spelling, skip) for skip in (False, True)}
        self._reserved_arguments = _reserved_arguments(tokenizer)
        self.eos_ids = eos_ids
        # Not the number of tokens: some vocabularies have gaps, and ids beyond their count.
        self.vocabulary = max(tokenizer.get_vocab().values()) + 1

    @classmethod
    def load(cls, path: Path, *, trust_remote_code: bool = False) -> Tokenizer:
        """Read the tokenizer from a model folder; nothing is ever fetched."""
        if not path.is_dir():
            raise TokenizerError(f"{path} is not a model folder; {REMEDY}")
        tokenizer = _load_files(path, trust_remote_code)
        if len(tokenizer) == 0:
            raise TokenizerError(f"the tokenizer in {path} has no tokens; {REMEDY}")
        # How long a prompt may be is the model's business; without this, a long one is warned about on stderr.
        tokenizer.model_max_length = sys.maxsize
        return cls(tokenizer, _eos_ids(path, tokenizer))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """`special` adds what the tokenizer puts around a text (a leading BOS, usually)."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(f"the text is not valid Unicode at character {error.start}: a lone surrogate") from error
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return str(
            self._tokenizer.decode(list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)
        )

    def stream(self, *, skip_special: bool = True) -> StreamDecoder:
        """A decoder for one sequence of tokens, generated text usually."""
        if (pieces := self._pieces[skip_special]) is None:
            hidden = self._hidden if skip_special else frozenset()
            return WindowDecoder(lambda ids: self.decode(ids, skip_special=skip_special), hidden.__contains__)
        if isinstance(self._spelling, ByteFallback):
            return PieceDecoder(pieces, mark_each_byte=True, strip_leading_spaces=self._spelling.strip_leading_spaces)
        return PieceDecoder(pieces)

    @property
    def added_tokens(self) -> dict[str, int]:
        """Tokens that a text never spells by accident: a grammar has to name them by number."""
        return dict(self._tokenizer.get_added_vocab())

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to the text; it may be part of a character."""
        pieces = self._pieces[False]
        if pieces is None:
            return self.decode([token], skip_special=False).encode()
        piece = pieces.lookup(token)
        return (piece.encode() if isinstance(piece, str) else piece) or b""

    def as_file(self) -> str | None:
        """What tokenizer.json would hold; None where a Python class does the work."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        return None if backend is None else str(backend.to_str())

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def chat_prompt(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        template_arguments: dict[str, Any] | None = None,
        continue_last: bool = False,
    ) -> list[int]:
        """Render the messages and encode them. The template writes its own BOS, so the tokenizer adds none."""
        arguments = template_arguments or {}
        if not self.has_chat_template:
            raise TemplateError("the model has no chat template: use the completions endpoint with a plain prompt")
        if reserved := sorted(self._reserved_arguments & arguments.keys()):
            raise TemplateError(f"template argument {reserved[0]!r} is set by the server: leave it out")
        try:
            ids = self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                add_generation_prompt=not continue_last,
                continue_final_message=continue_last,
                tokenize=True,
                return_dict=False,
                **arguments,
            )
        except _RENDERING_ERRORS as error:
            raise TemplateError(f"the chat template refused the messages: {one_line(error)}") from error
        return list(ids)

    def _token_pieces(self, spelling: Spelling | None, skip_special: bool) -> TokenPieces | None:
        if spelling is None or self._backend is None:
            return None
        name_of = self._backend.id_to_token
        added = self._backend.get_added_tokens_decoder().values()
        hidden = frozenset(token.content for token in added if token.special) if skip_special else frozenset()
        spell = spell_byte_fallback if isinstance(spelling, ByteFallback) else spell_byte_level
        return TokenPieces(spell, lambda token: None if (name := name_of(token)) in hidden else name)


def _load_files(path: Path, trust_remote_code: bool) -> Any:
    # Importing transformers takes a second, and says at length that it misses PyTorch, which we do not need.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:  # tokenizers raises plain Exception for a damaged file
        if "trust_remote_code" in str(error):
            remedy = "read that code, then allow it with --trust-remote-code if you trust it"
            raise TokenizerError(f"the tokenizer in {path} runs code of its own; {remedy}") from error
        raise TokenizerError(f"cannot load the tokenizer in {path} ({one_line(error)}); {REMEDY}") from error


def _plain_backend(tokenizer: Any) -> Any | None:
    """The Rust tokenizer, where decoding is all its own; None where a Python class has a say in it."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return None
    if any(getattr(kind, name) is not getattr(PreTrainedTokenizerFast, name) for name in ("decode", "_decode")):
        return None
    return tokenizer.backend_tokenizer


def _decoder_spec(backend: Any) -> Mapping[str, Any] | None:
    """The decoder as tokenizer.json writes it, without writing out the whole vocabulary."""
    return None if backend.decoder is None else json.loads(backend.decoder.__getstate__())


def _reserved_arguments(tokenizer: Any) -> frozenset[str]:
    """Names that would change how the template is called rather than what it sees: never the client's to choose."""
    from transformers.utils.chat_template_utils import render_jinja_template

    names = {"messages"}
    for function in (tokenizer.apply_chat_template, render_jinja_template):
        names.update(inspect.signature(function).parameters)
    return frozenset(names - {"documents", "kwargs"})


def _eos_ids(path: Path, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a turn: a model's files often name different ones, and each is meant."""
    return frozenset(token_ids(tokenizer.eos_token_id)) | named_stop_tokens(path)
