"""A conversation that goes on from an answer of ours: where in its text that answer ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from chorus.serving.prompt.branches import OTHERWISE, Branches, common_length
from chorus.serving.prompt.remembered import (
    AnswerMemory,
    Opened,
    Remembered,
    conversation_digests,
    tool_defaults,
    without_reasoning,
)
from chorus.serving.prompt.rendering import Rendering
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.serving.prompt.tokens import Prompt, cut_prompt
from chorus.serving.requests.request import GenerationRequest, Message
from chorus.text.errors import TemplateError

# Behind the first, which ends system and tools: each turn adds some, and old ones are of no use.
_MOST_CUTS = 8
# Each look at an answer that is remembered takes two renderings. Where the last few cannot be used, none can.
_MOST_LOOKS = 3


def resumed_prompt(
    request: GenerationRequest, told: Rendering, places: Branches, memory: AnswerMemory, tokenizer: ServedTokenizer
) -> Prompt:
    """The tokens of the last answer that is remembered and of all before it, then those of the text that follows; as
    the template has it where nothing is remembered, or anything does not match.
    """
    try:
        bare, whole = told.history(without_reasoning(told.messages)), told.history(list(told.messages))
    except TemplateError:
        return cut_prompt(told.text, places, tokenizer)
    digests = conversation_digests(request)
    found = _last_answer(request, told, bare, digests, memory, tokenizer)
    prompt = found.followed_by(told.text, places, tokenizer) if found else cut_prompt(told.text, places, tokenizer)
    if request.continue_last or request.uncached or not told.text.startswith(whole):
        return prompt
    return replace(prompt, opened=Opened(digests[-1], told.text[len(whole) :], bare, tool_defaults(request.tools)))


@dataclass(frozen=True)
class _Found:
    answer: Remembered
    end: int
    """The number of characters that its tokens stand for: the text goes on with the token that ended the answer."""
    is_last: bool
    """No later answer is in the conversation, so its client sends back what it is given."""

    def followed_by(self, text: str, places: Branches, tokenizer: ServedTokenizer) -> Prompt:
        tokens = tuple(self.answer.tokens)
        rest = cut_prompt(text[self.end :], places.behind(self.end), tokenizer)
        cuts, needed = (tuple(len(tokens) + cut for cut in cuts) for cuts in (rest.cuts, rest.needed_cuts))
        first, later = self.answer.cuts[:1], (*self.answer.cuts[1:], *cuts)
        return Prompt(tokens + rest.tokens, first + later[-_MOST_CUTS:], () if self.is_last else needed)


def _last_answer(
    request: GenerationRequest,
    told: Rendering,
    bare: str,
    digests: Sequence[bytes],
    memory: AnswerMemory,
    tokenizer: ServedTokenizer,
) -> _Found | None:
    # Whatever shape the template made necessary, answers are neither joined nor moved.
    keys = [key for key, message in zip(digests[1:], request.messages or (), strict=True) if _is_answer(message)]
    places = [place for place, message in enumerate(told.messages) if _is_answer(message)]
    answers = list(zip(places, keys, strict=True))[: len(keys) - request.continue_last]
    known = ((place, answer) for place, key in reversed(answers) if (answer := memory.get(key)))
    for place, answer in islice(known, _MOST_LOOKS):
        if answer.follows(bare) and (end := _end(told, place, answer, tokenizer)) is not None:
            return _Found(answer, end, is_last=place == places[-1])
    return None


def _is_answer(message: Message) -> bool:
    return message["role"] == "assistant"


def _end(told: Rendering, place: int, answer: Remembered, tokenizer: ServedTokenizer) -> int | None:
    """Where the token that ends a turn stands, behind the answer at a place among the messages.

    The turn is found by rendering it twice, with another answer the second time, and what follows it by its content.
    """
    messages, message = told.messages, told.messages[place]
    following = [{**after, "content": OTHERWISE} for after in messages[place + 1 : place + 2]]
    try:
        written = told.history([*messages[: place + 1], *following])
        otherwise = told.history([*messages[:place], _another(message), *following])
    except TemplateError:
        return None
    begin, shared = common_length(written, otherwise), common_length(written, told.text)
    stops = tokenizer.stop_texts
    found = [(end, stop) for stop in stops if (end := written.find(stop, begin, shared)) >= 0]
    if not found or any(stop in part for stop in stops for part in _parts(message)):
        return None
    end, stop = min(found)
    if tokenizer.seam_before(told.text, end + len(stop)) != end:
        return None
    # A thought that the template opens for an answer and leaves out of history stays if the client sends one back.
    turn = written[max(0, *(written.rfind(stop, 0, begin) for stop in stops)) : begin]
    return end if message.get("reasoning_content") or answer.opening in turn else None


def _another(message: Message) -> Message:
    """An answer in the same place and of the same kind that says something else."""
    (bare,) = without_reasoning([message])
    if not message.get("tool_calls"):
        return {**bare, "content": OTHERWISE}
    calls = [{**call, "function": {**call["function"], "name": OTHERWISE}} for call in message["tool_calls"]]
    return {**bare, "content": OTHERWISE, "tool_calls": calls}


def _parts(message: Message) -> list[str]:
    calls: Any = message.get("tool_calls") or ()
    texts = [json.dumps(call["function"], ensure_ascii=False) for call in calls]
    return [message["content"], message.get("reasoning_content") or "", *texts]
