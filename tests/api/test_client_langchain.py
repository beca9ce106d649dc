"""langchain-openai, over chat completions and over Responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import openai
import pydantic
import pytest
from llguidance import LLTokenizer

from chorus.messages.proto import engine_pb2 as pb
from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import MODEL_ID, ApiProcess
from tests.api.grammar_engine import obey
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, refuse, say

if TYPE_CHECKING:
    # It takes a second or two, and every worker reads every file: imported where it is used.
    from langchain_openai import ChatOpenAI

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sun in {city}"


class Report(pydantic.BaseModel):
    sky: Literal["clear", "grey"]


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def model(request: pytest.FixtureRequest, tool_api: ApiProcess) -> ChatOpenAI:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        base_url=f"{tool_api.url}/v1",
        api_key="x",
        model=MODEL_ID,
        max_retries=0,
        timeout=DEADLINE,
        use_responses_api=request.param,
    )


def says(tokenizer: Tokenizer, text: str) -> Any:
    return say(tokenizer.encode(text, special=False))


def test_a_chat_and_a_stream(model: ChatOpenAI, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    from langchain_core.messages import AIMessageChunk

    engine.next(says(tokenizer, "Sunny."), says(tokenizer, "Sunny."))
    answer = model.invoke("Weather?")
    assert answer.text == "Sunny."
    assert answer.usage_metadata["input_tokens"] == len(engine.last.prompt)
    whole = AIMessageChunk(content="")
    for chunk in model.stream("Weather?"):
        whole += chunk
    assert whole.text == "Sunny."


def test_a_tool_is_called_and_its_result_sent_back(
    model: ChatOpenAI, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    engine.next(says(tokenizer, CALL), says(tokenizer, "Sunny."))
    weather_tool = tool(weather)
    bound = model.bind_tools([weather_tool])
    first = bound.invoke("Weather?")
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Paris"})
    result = ToolMessage(weather_tool.invoke(call["args"]), tool_call_id=call["id"])
    assert bound.invoke([HumanMessage("Weather?"), first, result]).text == "Sunny."
    assert "sun in Paris" in tokenizer.decode(engine.last.prompt)


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(
    model: ChatOpenAI, engine: ScriptedEngine, tokenizer: Tokenizer, grammar_tokens: LLTokenizer, method: Any
) -> None:
    engine.default = says(tokenizer, '{"sky": "grey"}') if method == "json_mode" else obey(grammar_tokens)
    assert isinstance(model.with_structured_output(Report, method=method).invoke("Weather?"), Report)
    assert engine.last.HasField("grammar")


def test_errors_become_the_openai_clients_exceptions(model: ChatOpenAI, engine: ScriptedEngine) -> None:
    engine.default = refuse(pb.OVERLOADED, "the queue is full")
    with pytest.raises(openai.RateLimitError):
        model.invoke("Weather?")


def test_embeddings(start_api: Any, engine: ScriptedEngine) -> None:
    from langchain_openai import OpenAIEmbeddings

    api = start_api(embeddings=True)
    embeddings = OpenAIEmbeddings(
        base_url=f"{api.url}/v1", api_key="x", model=MODEL_ID, check_embedding_ctx_length=False, max_retries=0
    )
    assert len(embeddings.embed_documents(["one", "two"])) == 2
