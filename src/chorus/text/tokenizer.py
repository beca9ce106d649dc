"""A model's tokenizer: text to tokens and back, chat templates, and the tokens that end a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from jinja2 import TemplateError as JinjaError

from chorus.text import json_tokenizer
from chorus.text.chat_template import RESERVED_ARGUMENTS
from chorus.text.detokenizer import PieceDecoder, StreamDecoder, WindowDecoder
from chorus.text.errors import REMEDY, TemplateError, TextError, TokenizerError, one_line
from chorus.text.json_tokenizer import JsonTokenizer
from chorus.text.stop_tokens import named_stop_tokens, read_settings, token_ids
from chorus.text.transformers_tokenizer import TransformersTokenizer
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

# Classes of transformers that do more with a text than tokenizer.json says: CodeLlama's infills at <FILL_ME>.
_CLASSES_WITH_MORE = frozenset({"CodeLlamaTokenizer"})


class Tokenizer:
    """Made by `load`. Encoding and decoding keep no state; every stream of tokens gets a decoder of its own."""

    def __init__(self, tokenizer: JsonTokenizer | TransformersTokenizer, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.plain_backend
        self._spelling = None if self._backend is None else recognise(_decoder_spec(self._backend))
        self._pieces = {skip: self._token_pieces(self._spelling, skip) for skip in (False, True)}
        self.eos_ids = eos_ids
        # Not the number of tokens: some vocabularies have gaps, and ids beyond their count.
        self.vocabulary = max(tokenizer.vocabulary().values(), default=-1) + 1

    @classmethod
    def load(cls, path: Path, *, trust_remote_code: bool = False) -> Tokenizer:
        """Read the tokenizer from a model folder; nothing is ever fetched."""
        if not path.is_dir():
            raise TokenizerError(f"{path} is not a model folder; {REMEDY}")
        files = _load_files(path, trust_remote_code)
        # Every token that ends a turn: a model's files often name different ones, and each is meant.
        tokenizer = cls(files, frozenset(token_ids(files.eos_id)) | named_stop_tokens(path))
        if tokenizer.vocabulary == 0:
            raise TokenizerError(f"the tokenizer in {path} has no tokens; {REMEDY}")
        return tokenizer

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """`special` adds what the tokenizer puts around a text (a leading BOS, usually)."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(f"the text is not valid Unicode at character {error.start}: a lone surrogate") from error
        return self._tokenizer.encode(text, special)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return self._tokenizer.decode(ids, skip_special)

    def stream(self, *, skip_special: bool = True) -> StreamDecoder:
        """A decoder for one sequence of tokens, generated text usually."""
        if (pieces := self._pieces[skip_special]) is None:
            hidden = self._tokenizer.special_ids if skip_special else frozenset()
            return WindowDecoder(lambda ids: self.decode(ids, skip_special=skip_special), hidden.__contains__)
        if isinstance(self._spelling, ByteFallback):
            return PieceDecoder(pieces, mark_each_byte=True, strip_leading_spaces=self._spelling.strip_leading_spaces)
        return PieceDecoder(pieces)

    @property
    def added_tokens(self) -> dict[str, int]:
        """Tokens that a text never spells by accident: a grammar has to name them by number."""
        return self._tokenizer.added_tokens()

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to the text; it may be part of a character."""
        pieces = self._pieces[False]
        if pieces is None:
            return self.decode([token], skip_special=False).encode()
        piece = pieces.lookup(token)
        return (piece.encode() if isinstance(piece, str) else piece) or b""

    def as_file(self) -> str | None:
        """What tokenizer.json would hold; None where a Python class does the work."""
        backend = self._tokenizer.backend
        return None if backend is None else backend.to_str()

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """The source of every template, by name."""
        return self._tokenizer.templates

    @property
    def has_chat_template(self) -> bool:
        return bool(self.chat_templates)

    def chat_prompt(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        template_arguments: dict[str, Any] | None = None,
        continue_last: bool = False,
    ) -> list[int]:
        """Render the messages and encode them. The template writes its own BOS, so the tokenizer adds none."""
        text = self.chat_text(messages, tools=tools, template_arguments=template_arguments, continue_last=continue_last)
        return self.encode(text, special=False)

    def chat_text(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        template_arguments: dict[str, Any] | None = None,
        continue_last: bool = False,
        for_answer: bool = True,
    ) -> str:
        """`for_answer`: with the beginning of an answer, where none is continued."""
        arguments = template_arguments or {}
        if not self.has_chat_template:
            raise TemplateError("the model has no chat template: use the completions endpoint with a plain prompt")
        if reserved := sorted(RESERVED_ARGUMENTS & arguments.keys()):
            raise TemplateError(f"template argument {reserved[0]!r} is set by the server: leave it out")
        try:
            text = self._tokenizer.chat_text(messages, tools, arguments, continue_last, for_answer)
            text.encode()  # a lone surrogate is refused here
        except _RENDERING_ERRORS as error:
            raise TemplateError(f"the chat template refused the messages: {one_line(error)}") from error
        return text

    def seam_before(self, text: str, end: int) -> int:
        """Where the last token that nothing around it can change begins, of those that end by `end`; -1: there is none.

        Before it the text may be cut, and up to and with it the tokens are the same, whatever follows.
        """
        start = -1
        for seam in self._seams:
            start = max(start, text.rfind(seam, max(start, 0), end))
        return start

    def encode_parts(self, texts: Sequence[str]) -> list[list[int]]:
        """The parts of a prompt that was rendered and cut at its seams."""
        return self._tokenizer.encode_parts(texts)

    @cached_property
    def _seams(self) -> tuple[str, ...]:
        return self._tokenizer.seams()

    def _token_pieces(self, spelling: Spelling | None, skip_special: bool) -> TokenPieces | None:
        if spelling is None or self._backend is None:
            return None
        name_of = self._backend.id_to_token
        added = self._backend.get_added_tokens_decoder().values()
        hidden = frozenset(token.content for token in added if token.special) if skip_special else frozenset()
        spell = spell_byte_fallback if isinstance(spelling, ByteFallback) else spell_byte_level
        return TokenPieces(spell, lambda token: None if (name := name_of(token)) in hidden else name)


def _load_files(path: Path, trust_remote_code: bool) -> JsonTokenizer | TransformersTokenizer:
    settings = read_settings(path / "tokenizer_config.json")
    try:
        if (path / json_tokenizer.FILE).is_file() and not _needs_python(settings, trust_remote_code):
            return JsonTokenizer(path, settings)
        return TransformersTokenizer(path, trust_remote_code=trust_remote_code)
    except TokenizerError:
        raise
    except Exception as error:  # tokenizers raises plain Exception for a damaged file
        if "trust_remote_code" in str(error):
            remedy = "read that code, then allow it with --trust-remote-code if you trust it"
            raise TokenizerError(f"the tokenizer in {path} runs code of its own; {remedy}") from error
        raise TokenizerError(f"cannot load the tokenizer in {path} ({one_line(error)}); {REMEDY}") from error


def _needs_python(settings: Mapping[str, Any], trust_remote_code: bool) -> bool:
    """Whether a folder with a tokenizer.json is to be read by a class in Python all the same.

    A class of the model's own runs where its code is trusted; tokenizer.json needs nobody's trust.
    """
    if str(settings.get("tokenizer_class")).removesuffix("Fast") in _CLASSES_WITH_MORE:
        return True
    return trust_remote_code and bool(settings.get("auto_map"))


def _decoder_spec(backend: tokenizers.Tokenizer) -> Mapping[str, Any] | None:
    """The decoder as tokenizer.json writes it, without writing out the whole vocabulary."""
    return None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
