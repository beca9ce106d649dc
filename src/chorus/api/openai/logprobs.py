"""Log probabilities as OpenAI's chat and Responses write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chorus.messages.engine import TokenLogprobs
from chorus.serving.prompt.tokenizer import ServedTokenizer


def logprob_entries(tokenizer: ServedTokenizer, tokens: Iterable[tuple[int, TokenLogprobs]]) -> list[dict[str, Any]]:
    return [
        {
            **_candidate(tokenizer, token, known.logprob),
            "top_logprobs": [_candidate(tokenizer, other, logprob) for other, logprob in known.top],
        }
        for token, known in tokens
    ]


def _candidate(tokenizer: ServedTokenizer, token: int, logprob: float) -> dict[str, Any]:
    """The bytes are exact; the text shows a mark where a token is only part of a character."""
    spelled = tokenizer.token_bytes(token)
    return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}
