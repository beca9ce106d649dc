"""What can go wrong with text: a folder without a usable tokenizer, or a request the model's template refuses."""

from __future__ import annotations

from chorus.errors import ChorusError

REMEDY = "import or pull the model again, or add its tokenizer.json and tokenizer_config.json"
"""For a folder without a usable tokenizer."""


class TokenizerError(ChorusError):
    """The model folder holds no tokenizer that can be loaded; the message names the folder and the remedy."""


class TextError(ChorusError, ValueError):
    """The client's text cannot be turned into tokens; the client's fault, not the server's."""


class TemplateError(TextError):
    """The chat template cannot render these messages; carries the template's own message."""


def one_line(error: BaseException, limit: int = 400) -> str:
    """Other libraries write paragraphs; an error of ours is one line."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= limit else words[: limit - 1] + "…"
