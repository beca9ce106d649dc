"""Whole sessions of real clients: each request goes on from the one before it and from its answer, token by token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chorus.api.anthropic.request import MessagesRequest
from chorus.api.anthropic.routes import conversation
from chorus.api.openai.chat.request import ChatRequest
from chorus.api.openai.chat.routes import generation_request
from chorus.api.server.gate import Record
from chorus.config.front_end import ApiSettings, ModelSettings
from chorus.config.sampling import DefaultSampling
from chorus.serving.prompt.conversation import conversation_tokens
from chorus.serving.prompt.remembered import AnswerMemory, answer_message
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.serving.prompt.tokens import Prompt
from chorus.serving.requests.request import GenerationRequest
from chorus.text.parsers import choose
from tests.serving.chat_templates import served

HERE = Path(__file__).parent
# Qwen 3's own: it leaves reasoning out of all turns before the last question.
TEMPLATE = (HERE.parent / "e2e/agents/thinking.jinja").read_text()
SETTINGS = ApiSettings(models=(ModelSettings(engine_address="unix:none", id="m", name="m", path=Path("m")),))


async def nobody(_: Any) -> None:
    raise AssertionError("nothing is answered here")


def session(name: str) -> list[GenerationRequest]:
    """The requests of one conversation; titles are another."""
    recorded = json.loads((HERE / "recorded_sessions" / f"{name}.json").read_text())
    bodies = [request["body"] for request in recorded]
    for body in bodies:
        for field in ("tools", "system"):
            if isinstance(body.get(field), dict):
                body[field] = bodies[body[field]["same_as_request"]][field]
    read = from_claude_code if name.startswith("claude") else from_opencode
    return [read(json.dumps(body)) for body in bodies if body.get("tools")]


def from_claude_code(body: str) -> GenerationRequest:
    return conversation(MessagesRequest.model_validate_json(body), SETTINGS)


def from_opencode(body: str) -> GenerationRequest:
    return generation_request(ChatRequest.model_validate_json(body), Record("id", nobody), SETTINGS, DefaultSampling())


def written(message: dict[str, Any]) -> str:
    """What the model may have said: with arguments in an order, with spaces and with points that no client sends."""
    thought = f"<think>\n{message['reasoning_content']}\n</think>\n\n" if message.get("reasoning_content") else ""
    return thought + message["content"] + "".join(map(written_call, message.get("tool_calls", ())))


def written_call(call: dict[str, Any]) -> str:
    """An argument that the client added is one that the model had left to the tool's default."""
    meant = {name: part for name, part in call["function"]["arguments"].items() if name != "replace_all"}
    odd = {name: float(part) if isinstance(part, int) else part for name, part in reversed(meant.items())}
    function = {"name": call["function"]["name"], "arguments": odd}
    return f"\n<tool_call>\n{json.dumps(function, separators=(', ', ' :  '))}\n</tool_call> "


class Replay:
    def __init__(self, tokenizer: ServedTokenizer) -> None:
        self.tokenizer = tokenizer
        self.memory = AnswerMemory(100, 1 << 24)

    def prompts(self, requests: list[GenerationRequest]) -> Iterator[tuple[Prompt, list[int]]]:
        """Each prompt, and the tokens of its answer as the next request has it."""
        for request, following in pairwise([*requests, requests[-1]]):
            prompt = conversation_tokens(request, self.tokenizer, self.memory)
            yield prompt, self.answer(prompt, request, following)

    def answer(self, prompt: Prompt, request: GenerationRequest, following: GenerationRequest) -> list[int]:
        messages = (following.messages or ())[len(request.messages or ()) :]
        if not messages:
            return []
        ids = iter([call["id"] for call in messages[0].get("tool_calls", ())])
        parser = choose(TEMPLATE).new(
            tools=request.tools.for_template(), thinks=True, starts_in_reasoning=False, id_factory=lambda: next(ids)
        )
        text = written(messages[0])
        answer = answer_message([*parser.push(text), *parser.flush()], 64)
        tokens = self.tokenizer.encode(text, special=False)
        assert answer is not None
        assert prompt.opened is not None
        self.memory.put(prompt.opened, [*prompt.tokens, *tokens], prompt.cuts, answer)
        return tokens


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ServedTokenizer:
    return served(tmp_path_factory.mktemp("thinking"), TEMPLATE)


@pytest.mark.parametrize(("name", "requests"), [("claude_code_2.1.325", 7), ("opencode_1.18.33", 6)])
def test_every_request_goes_on_from_the_answer_before_it(tokenizer: ServedTokenizer, name: str, requests: int) -> None:
    sent = session(name)
    assert len(sent) == requests
    ends = tokenizer.encode("<|im_end|>", special=False)
    for (earlier, answer), (later, _) in pairwise(Replay(tokenizer).prompts(sent)):
        known = [*earlier.tokens, *answer, *ends]
        assert list(later.tokens[: len(known)]) == known
        assert later.needed_cuts == ()


def test_what_a_client_sends_means_the_same_without_the_memory(tokenizer: ServedTokenizer) -> None:
    """The last prompt has every result and every question, in the same order, as the template's own."""
    sent = session("claude_code_2.1.325")
    *_, (last, _) = Replay(tokenizer).prompts(sent)
    plain = conversation_tokens(sent[-1], tokenizer)

    def turns(prompt: Prompt) -> list[str]:
        text = tokenizer.decode(prompt.tokens, skip_special=False)
        return [turn for turn in text.split("<|im_start|>") if not turn.startswith("assistant")]

    assert turns(last) == turns(plain)
