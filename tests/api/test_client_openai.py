"""The official openai client: what it asks for is understood, what it gets is what it expects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest
from llguidance import LLTokenizer

from chorus.messages.proto import engine_pb2 as pb
from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import MODEL_ID, ApiProcess
from tests.api.grammar_engine import obey
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, refuse, say

QUESTION: Any = [{"role": "user", "content": "Weather in Paris?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class Weather(pydantic.BaseModel):
    city: Literal["Paris", "Rome"]


class Report(pydantic.BaseModel):
    model_config = {"extra": "forbid"}

    sky: Literal["clear", "grey"]
    degrees: int = pydantic.Field(ge=0, le=9)
    places: list[Weather] = pydantic.Field(max_length=2)


@pytest.fixture
def client(tool_api: ApiProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tool_api.url}/v1", api_key="x", max_retries=0, timeout=DEADLINE) as client:
        yield client


def says(tokenizer: Tokenizer, text: str) -> Any:
    return say(tokenizer.encode(text, special=False))


def test_tools_in_a_stream_helper(client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, "See: " + CALL))
    tool = openai.pydantic_function_tool(Weather, name="weather")
    with client.chat.completions.stream(model=MODEL_ID, messages=QUESTION, tools=[tool]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    (call,) = final.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Weather(city="Paris")
    assert final.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("seed", range(3))
def test_a_pydantic_model_in_and_an_object_out(
    client: openai.OpenAI, engine: ScriptedEngine, grammar_tokens: LLTokenizer, seed: int
) -> None:
    engine.default = obey(grammar_tokens)
    answer = client.chat.completions.parse(model=MODEL_ID, messages=QUESTION, response_format=Report, seed=seed)
    assert isinstance(answer.choices[0].message.parsed, Report)


def test_responses_with_a_stream_and_a_conversation(
    client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, "<think>Hm.</think>Sunny."), says(tokenizer, "Yes."))
    with client.responses.stream(model=MODEL_ID, input="Weather?") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "Sunny."
    assert [item.type for item in final.output] == ["reasoning", "message"]
    following = client.responses.create(model=MODEL_ID, input="Sure?", previous_response_id=final.id)
    assert following.output_text == "Yes."
    assert client.responses.retrieve(final.id).output_text == "Sunny."
    client.responses.delete(final.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(final.id)


def test_responses_with_tools_and_structured_output(
    client: openai.OpenAI, engine: ScriptedEngine, tokenizer: Tokenizer, grammar_tokens: LLTokenizer
) -> None:
    engine.next(says(tokenizer, CALL))
    tool: Any = {
        "type": "function",
        "name": "weather",
        "parameters": Weather.model_json_schema(),
        "strict": True,
    }
    called = client.responses.create(model=MODEL_ID, input="Weather?", tools=[tool])
    (item,) = called.output
    assert item.type == "function_call"
    assert json.loads(item.arguments) == {"city": "Paris"}
    engine.default = obey(grammar_tokens)
    parsed = client.responses.parse(model=MODEL_ID, input="Weather?", text_format=Report)
    assert isinstance(parsed.output_parsed, Report)


@pytest.mark.parametrize(
    ("finish", "kind"),
    [
        (pb.REJECTED, openai.BadRequestError),
        (pb.OVERLOADED, openai.RateLimitError),
        (pb.FAILED, openai.InternalServerError),
    ],
)
def test_errors_become_the_clients_exceptions(
    client: openai.OpenAI, engine: ScriptedEngine, finish: pb.Finish, kind: type[openai.APIStatusError]
) -> None:
    engine.default = refuse(finish, "the reason why")
    with pytest.raises(kind, match="he reason why"):
        client.chat.completions.create(model=MODEL_ID, messages=QUESTION)
    with pytest.raises(kind, match="he reason why"):
        client.responses.create(model=MODEL_ID, input="x", stream=True)


def test_a_stream_that_breaks_raises(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    def breaks(run: Any) -> None:
        run.send(70)
        run.finish(pb.FAILED, error="out of memory")

    engine.default = breaks
    with pytest.raises(openai.APIError, match="ut of memory"):
        list(client.chat.completions.create(model=MODEL_ID, messages=QUESTION, stream=True))
    with pytest.raises(openai.APIError, match="ut of memory"):
        list(client.responses.create(model=MODEL_ID, input="x", stream=True))


def test_an_unknown_model_is_a_not_found_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=QUESTION)
