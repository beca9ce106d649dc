"""The tokens that a model's settings name or list beside tokenizer.json, read as transformers reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from chorus.text.stop_tokens import read_settings

_USUAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class SpecialTokens:
    named: dict[str, AddedToken]
    """By the name that a chat template knows them by: bos_token, eos_token, image_token, …"""
    extra: list[AddedToken]
    """Special, without a name."""
    listed: list[AddedToken]
    """What was added to the vocabulary, in the order of the ids; this comes before what tokenizer.json says of them."""
    older: list[AddedToken]
    """The same from added_tokens.json; there tokenizer.json comes first."""

    @property
    def texts(self) -> dict[str, str]:
        return {name: token.content for name, token in self.named.items()}

    def missing_from(self, known: set[str]) -> Iterator[AddedToken]:
        """What a tokenizer that has these added tokens has yet to be told, in the order of the ids to be."""
        yield from self.listed
        known = known | {token.content for token in self.listed}
        special = {token.content for token in (*self.named.values(), *self.extra)}
        for token in (*self.older, *self.named.values(), *self.extra):
            if token.content not in known:
                known.add(token.content)
                token.special = token.content in special
                yield token


def read_special_tokens(folder: Path, settings: Mapping[str, Any]) -> SpecialTokens:
    """`settings` is tokenizer_config.json; folders in which it lists no tokens have files from before it did."""
    listed, older, values = settings.get("added_tokens_decoder"), {}, dict(settings)
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    if listed is None:
        older = read_settings(folder / "added_tokens.json")
        names = read_settings(folder / "special_tokens_map.json")
        values |= names
        extra = extra or names.get("extra_special_tokens") or names.get("additional_special_tokens")
    chosen = extra if isinstance(extra, dict) else {}
    values |= chosen
    others = [name for name, value in values.items() if name.endswith("_token") and isinstance(value, str | dict)]
    named = dict.fromkeys([*_USUAL_NAMES, *others, *chosen])
    return SpecialTokens(
        named={name: _token(values[name]) for name in named if values.get(name) is not None},
        extra=[_token(entry) for entry in extra or [] if extra is not chosen],
        listed=[_token(fields) for _, fields in sorted((listed or {}).items(), key=lambda entry: int(entry[0]))],
        older=[AddedToken(text) for text, _ in sorted(older.items(), key=lambda entry: int(entry[1]))],
    )


def _token(value: Any) -> AddedToken:
    """A token is written as its text, or as an object with the text and how it is matched."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    return AddedToken(value["content"], **{flag: value[flag] for flag in _FLAGS if flag in value})
