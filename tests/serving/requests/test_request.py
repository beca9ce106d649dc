"""Every protocol's request becomes the same plain value, which prints, compares and can be sent elsewhere."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chorus.api.anthropic import routes as messages
from chorus.api.anthropic.request import MessagesRequest
from chorus.api.openai.chat import routes as chat
from chorus.api.openai.chat.request import ChatRequest
from chorus.api.openai.completions import routes as completions
from chorus.api.openai.completions.request import CompletionRequest
from chorus.api.openai.responses import routes as responses
from chorus.api.openai.responses.history import messages_of
from chorus.api.openai.responses.request import ResponsesRequest
from chorus.api.server.gate import Record
from chorus.config.front_end import ApiSettings, ModelSettings
from chorus.config.sampling import DefaultSampling
from chorus.config.sections import ApiConfig
from chorus.localai.chat import read_chat
from chorus.messages.proto import localai_pb2
from chorus.serving.requests.request import GenerationRequest

SETTINGS = ApiSettings(models=(ModelSettings(engine_address="unix:none", id="m", name="m", path=Path("m")),))
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "d", "parameters": PARAMETERS}
QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Does it rain?"}]


async def send(_: Any) -> None:
    raise AssertionError("nothing is answered here")


def record() -> Record:
    return Record("id-1", send, owner="key-1")


def from_chat() -> GenerationRequest:
    tools = [{"type": "function", "function": TOOL}]
    body = {"messages": QUESTION, "tools": tools, "seed": 1, "stop": "x", "response_format": {"type": "json_object"}}
    return chat.generation_request(ChatRequest.model_validate(body), record(), SETTINGS, DefaultSampling())


def from_completions() -> GenerationRequest:
    body = CompletionRequest.model_validate({"prompt": ["one", "two"], "n": 2, "seed": 1, "logprobs": 3})
    return completions.generation_request(body, record(), SETTINGS, DefaultSampling())


def from_responses() -> GenerationRequest:
    tools = [{"type": "function", **TOOL}]
    body = ResponsesRequest.model_validate({"input": QUESTION, "tools": tools, "seed": 1})
    return responses.generation_request(
        body, messages_of(body.input, SETTINGS.limits), record(), SETTINGS, DefaultSampling()
    )


def from_messages() -> GenerationRequest:
    tools = [{"name": "weather", "description": "d", "input_schema": PARAMETERS}]
    body = {"system": "Be brief.", "messages": QUESTION[1:], "tools": tools, "max_tokens": 5}
    return messages.conversation(MessagesRequest.model_validate(body), SETTINGS)


def from_localai() -> GenerationRequest:
    asked = localai_pb2.PredictOptions(
        Messages=[localai_pb2.Message(**entry) for entry in QUESTION], Tools=json.dumps([{"function": TOOL}])
    )
    return read_chat(asked, {}, ApiConfig())


ALL = [from_chat, from_completions, from_responses, from_messages, from_localai]


@pytest.mark.parametrize("make", ALL)
def test_it_prints_compares_and_can_be_sent(make: Callable[[], GenerationRequest]) -> None:
    request = make()
    assert request == make()
    assert " at 0x" not in repr(request)
    assert pickle.loads(pickle.dumps(request)) == request


@pytest.mark.parametrize("make", [from_responses, from_messages, from_localai])
def test_every_protocol_says_the_same_of_one_conversation(make: Callable[[], GenerationRequest]) -> None:
    request, other = from_chat(), make()
    assert list(other.messages or ()) == list(request.messages or ())
    assert other.tools == request.tools


def test_choices_are_those_of_every_prompt() -> None:
    request = from_completions()
    assert (request.choices, request.choices_per_prompt, request.logprobs) == (4, 2, 3)
    assert (request.id, request.owner) == ("id-1", "key-1")
