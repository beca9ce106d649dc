"""LiteLLM, by its OpenAI and by its Anthropic side."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

import pydantic
import pytest
from llguidance import LLTokenizer

from chorus.messages.proto import engine_pb2 as pb
from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import MODEL_ID, ApiProcess
from tests.api.grammar_engine import obey
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, refuse, say

HELLO = [{"role": "user", "content": "Weather in Paris?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class Report(pydantic.BaseModel):
    sky: Literal["clear", "grey"]


@pytest.fixture(scope="module")
def litellm() -> Any:
    """Imported here and not above: it takes seconds, and every worker reads every file."""
    # It fetches a price list from the network otherwise.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    library = pytest.importorskip("litellm")
    library.telemetry = False
    return library


@pytest.fixture(params=["openai", "anthropic"])
def options(request: pytest.FixtureRequest, tool_api: ApiProcess) -> dict[str, Any]:
    base = f"{tool_api.url}/v1" if request.param == "openai" else tool_api.url
    return {
        "model": f"{request.param}/{MODEL_ID}",
        "api_base": base,
        "api_key": "x",
        "num_retries": 0,
        "max_retries": 0,
        "timeout": DEADLINE,
        "max_tokens": 500,
    }


def says(tokenizer: Tokenizer, text: str) -> Any:
    return say(tokenizer.encode(text, special=False))


def test_a_chat(litellm: Any, options: dict[str, Any], engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, "Sunny."))
    answer = litellm.completion(messages=HELLO, **options)
    assert answer.choices[0].message.content == "Sunny."
    assert answer.usage.prompt_tokens == len(engine.last.prompt)


def test_a_stream(litellm: Any, options: dict[str, Any], engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, "Sunny."))
    chunks = list(litellm.completion(messages=HELLO, stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Sunny."
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_tools(litellm: Any, options: dict[str, Any], engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, CALL))
    answer = litellm.completion(messages=HELLO, tools=[WEATHER], **options)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
    assert answer.choices[0].finish_reason == "tool_calls"


def test_structured_output(
    litellm: Any, options: dict[str, Any], engine: ScriptedEngine, grammar_tokens: LLTokenizer
) -> None:
    engine.default = obey(grammar_tokens)
    answer = litellm.completion(messages=HELLO, response_format=Report, **options)
    Report.model_validate_json(answer.choices[0].message.content)


@pytest.mark.parametrize(
    ("finish", "name"),
    [(pb.REJECTED, "BadRequestError"), (pb.OVERLOADED, "RateLimitError"), (pb.FAILED, "InternalServerError")],
)
def test_errors_become_its_exceptions(
    litellm: Any, options: dict[str, Any], engine: ScriptedEngine, finish: pb.Finish, name: str
) -> None:
    engine.default = refuse(finish, "the reason why")
    with pytest.raises(getattr(litellm.exceptions, name), match="he reason why"):
        litellm.completion(messages=HELLO, **options)
