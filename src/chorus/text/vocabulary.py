"""How a vocabulary spells its tokens, and which spellings can be turned into bytes one token at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "▁"


@dataclass(frozen=True)
class ByteLevel:
    """Every token is a string of letters that stand for one byte each (GPT-2 and its many heirs)."""


@dataclass(frozen=True)
class ByteFallback:
    """Tokens are text with a mark for the space; characters that are not in the vocabulary are spelled in bytes."""

    strip_leading_spaces: int = 0


Spelling = ByteLevel | ByteFallback


def recognise(decoder: Mapping[str, Any] | None) -> Spelling | None:
    """Tell from a tokenizer's decoder, as written in tokenizer.json, how its tokens are spelled; None if unknown."""
    if decoder is None:
        return None
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevel()
    if kinds[:3] != ["Replace", "ByteFallback", "Fuse"] or kinds[3:] not in ([], ["Strip"]):
        return None
    if steps[0].get("pattern") != {"String": _SPACE_MARK} or steps[0].get("content") != " ":
        return None
    if kinds[3:] == []:
        return ByteFallback()
    strip = steps[3]
    if strip.get("content") != " " or strip.get("stop") != 0:
        return None
    return ByteFallback(strip_leading_spaces=strip.get("start", 0))


class TokenPieces:
    """The bytes or text of each token, worked out when a token is first seen and kept for all streams."""

    def __init__(self, spell: Callable[[str], bytes | str], name_of: Callable[[int], str | None]) -> None:
        self._spell = spell
        self._name_of = name_of
        self._known: dict[int, bytes | str | None] = {}

    def lookup(self, token: int) -> bytes | str | None:
        try:
            return self._known[token]
        except KeyError:
            name = self._name_of(token)
            piece = None if name is None else self._spell(name)
            self._known[token] = piece
            return piece


def spell_byte_level(name: str) -> bytes:
    """A name with a letter outside the byte alphabet is an added token, which stands for itself."""
    try:
        return bytes(_BYTE_OF_LETTER[letter] for letter in name)
    except KeyError:
        return name.encode()


def spell_byte_fallback(name: str) -> bytes | str:
    if byte := _BYTE_TOKEN.fullmatch(name):
        return bytes([int(byte[1], 16)])
    return name.replace(_SPACE_MARK, " ")


def _byte_alphabet() -> dict[str, int]:
    """Printable Latin-1 letters stand for their own byte; the other bytes, in order, got the letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_alphabet()
