"""The tokenizer as front ends need it: besides text, what a single token looks like, and the chat template."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from chorus.text.tokenizer import Tokenizer


class ServedTokenizer(Tokenizer):
    @classmethod
    def load(cls, path: Path, *, trust_remote_code: bool = False) -> ServedTokenizer:
        loaded = super().load(path, trust_remote_code=trust_remote_code)
        assert isinstance(loaded, cls)
        return loaded

    @property
    def chat_template(self) -> str | None:
        """The template's source; where a model has several, all of them, since they share their markers."""
        return "\n".join(self.chat_templates.values()) or None

    @property
    def shows_tools(self) -> bool:
        """Whether the template has a place for tools."""
        return "tools" in (self.chat_template or "")

    @property
    def knows_developers(self) -> bool:
        """Whether the template has a place for the developer role; elsewhere it means the system."""
        return "developer" in (self.chat_template or "")

    @cached_property
    def stop_texts(self) -> tuple[str, ...]:
        """Of the tokens that end a turn."""
        return tuple(text for text, token in self.added_tokens.items() if token in self.eos_ids)

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")
