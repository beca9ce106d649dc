"""Whether what a client saw is what its front end was given, to the last character."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from chorus.messages.engine import Finish
from tests.chaos.asking import Exchange
from tests.chaos.noted import Noted


def differences(model: Path, exchanges: Iterable[Exchange], noted: Iterable[Noted]) -> Iterator[str]:
    """Of all answers that were whole."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    by_id = {name: one for one in noted for name in (one.id, one.seed)}
    for exchange in exchanges:
        if exchange.complete:
            own = by_id.get(exchange.id)
            found = _difference(tokenizer, exchange, own) if own else "nobody asked the engine"
            if found:
                yield f"{exchange.id} ({exchange.kind}): {found}"


def _difference(tokenizer: Tokenizer, exchange: Exchange, noted: Noted) -> str | None:
    text = tokenizer.decode(noted.tokens, skip_special_tokens=exchange.kind != "tools")
    stopped = noted.finish is Finish.STOP
    if problem := noted.problem():
        return problem
    if exchange.told_again not in (None, exchange.text):
        return f"what was told at the end is not what was sent: {_parting(exchange.text, exchange.told_again or '')}"
    if exchange.tokens not in (None, len(noted.tokens) + stopped):
        return f"the usage says {exchange.tokens} tokens, there were {len(noted.tokens)}"
    if exchange.kind == "tools":
        return None if not stopped or _calls(text, exchange.arguments) else f"{text!r} became {exchange.arguments!r}"
    if exchange.text_only:
        text = text.replace("\ufffd", "")
    return None if exchange.text == text else f"the client saw another text: {_parting(text, exchange.text)}"


def _parting(one: str, other: str) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    at = next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
    return f"after {at} characters {one[at : at + 20]!r} became {other[at : at + 20]!r}"


def _calls(text: str, arguments: str) -> bool:
    """Whether these are the arguments, one behind the other, that the text calls its functions with."""
    called = [json.loads(call)["arguments"] for call in re.findall(r"(?s)<tool_call>(.*?)</tool_call>", text)]
    return called == list(_values(arguments))


def _values(text: str) -> Iterator[Any]:
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        value, place = decoder.raw_decode(text, place)
        yield value
