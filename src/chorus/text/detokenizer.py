"""Tokens to text, one token at a time, never emitting half a character.

A token is not a piece of text but a piece of bytes, and what it reads as may depend on its neighbours. For the two
layouts that nearly every language model uses (byte-level, and sentencepiece with byte fallback) the bytes of a token
are fixed, so one pass with an incremental UTF-8 decoder gives the very text that decoding everything at once gives.
Any other tokenizer is asked to decode a short window of recent tokens again at each step.

One exception, on purpose: where a run of byte-fallback tokens is not valid UTF-8, the `tokenizers` library replaces
every byte of that run, even the characters that were complete. Those were emitted already; they stay.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

REPLACEMENT = "\ufffd"

# Longer than any character takes in tokens (four bytes, so four tokens at most), short enough to decode in no time.
_LONGEST_WAIT = 8


class StreamDecoder(ABC):
    """Turns one sequence of tokens into text as it grows. Not shared between sequences."""

    @abstractmethod
    def push(self, token: int) -> str:
        """The characters that this token completes; empty while it ends in the middle of one."""

    @abstractmethod
    def flush(self) -> str:
        """The sequence has ended: bytes that never became a character are emitted as U+FFFD."""


class Pieces(Protocol):
    """What each token of a vocabulary contributes to the text."""

    def lookup(self, token: int) -> bytes | str | None:
        """Bytes that may be part of a character, text that stands alone, or None for a token that is not shown."""


def _one_mark_per_byte(error: UnicodeError) -> tuple[str, int]:
    """Byte-fallback vocabularies show each stray byte; plain "replace" would merge those of a cut-off character."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return REPLACEMENT * (error.end - error.start), error.end


_PER_BYTE = "chorus-one-mark-per-byte"
codecs.register_error(_PER_BYTE, _one_mark_per_byte)
_Utf8 = codecs.getincrementaldecoder("utf-8")


class PieceDecoder(StreamDecoder):
    """For vocabularies whose tokens have fixed bytes: constant work per token, and exact."""

    def __init__(self, pieces: Pieces, *, mark_each_byte: bool = False, strip_leading_spaces: int = 0) -> None:
        self._lookup = pieces.lookup
        self._utf8 = _Utf8(_PER_BYTE if mark_each_byte else "replace")
        self._spaces_to_strip = strip_leading_spaces

    def push(self, token: int) -> str:
        piece = self._lookup(token)
        if piece is None:
            return ""
        text = self._utf8.decode(piece) if isinstance(piece, bytes) else self._utf8.decode(b"", True) + piece
        return self._strip(text) if self._spaces_to_strip else text

    def flush(self) -> str:
        return self._strip(self._utf8.decode(b"", True))

    def _strip(self, text: str) -> str:
        while self._spaces_to_strip and text:
            if text[0] != " ":
                self._spaces_to_strip = 0
            else:
                text = text[1:]
                self._spaces_to_strip -= 1
        return text


class WindowDecoder(StreamDecoder):
    """For any other tokenizer: decode the last few tokens with and without the new ones; the difference is new.

    The window always begins with tokens that showed some text, so that what a tokenizer does at the start of a text
    (dropping a space, say) happens on both sides of the difference and cancels out.
    """

    def __init__(self, decode: Callable[[list[int]], str], is_hidden: Callable[[int], bool]) -> None:
        self._decode = decode
        self._is_hidden = is_hidden
        self._window: list[int] = []
        self._known = 0
        self._known_text = ""

    def push(self, token: int) -> str:
        if self._is_hidden(token):
            return ""
        self._window.append(token)
        text = self._decode(self._window)
        waiting = len(self._window) - self._known
        if text.endswith(REPLACEMENT) and waiting < _LONGEST_WAIT:
            return ""
        return self._settle(text)

    def flush(self) -> str:
        return self._settle(self._decode(self._window))

    def _settle(self, text: str) -> str:
        new = text[len(self._known_text) :]
        if new:
            self._slide(text)
        elif len(self._window) - self._known >= _LONGEST_WAIT:
            del self._window[max(self._known, 1) :]
        return new

    def _slide(self, text: str) -> None:
        """Keep only the tokens just settled, unless they show nothing by themselves."""
        recent = self._window[self._known :]
        recent_text = self._decode(recent)
        if recent_text:
            self._window, self._known_text = recent, recent_text
        else:
            self._known_text = text
        self._known = len(self._window)
