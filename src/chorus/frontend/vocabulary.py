"""The tokenizer as front ends need it: besides text, what a single token is, and what the chat template looks like."""

from __future__ import annotations

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
        template = self._tokenizer.chat_template
        if isinstance(template, dict):
            return "\n".join(template.values())
        return template or None

    @property
    def knows_developers(self) -> bool:
        """Whether the template has a place for the developer role; elsewhere it means the system."""
        return "developer" in (self.chat_template or "")

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

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")
