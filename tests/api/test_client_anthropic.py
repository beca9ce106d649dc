"""The official anthropic client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from chorus.messages.proto import engine_pb2 as pb
from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import MODEL_ID, ApiProcess
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, refuse, say

if TYPE_CHECKING:
    # It takes a second or two, and every worker reads every file: imported where it is used.
    import anthropic

HELLO: Any = [{"role": "user", "content": "Weather in Paris?"}]
WEATHER: Any = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.fixture
def client(tool_api: ApiProcess) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=tool_api.url, api_key="x", max_retries=0, timeout=DEADLINE) as client:
        yield client


def says(tokenizer: Tokenizer, text: str) -> Any:
    return say(tokenizer.encode(text, special=False))


def test_a_message(client: anthropic.Anthropic, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, "Sunny."))
    message = client.messages.create(model=MODEL_ID, max_tokens=50, messages=HELLO, system="Be brief.")
    assert message.content[0].text == "Sunny."
    assert message.stop_reason == "end_turn"
    counted = client.messages.count_tokens(model=MODEL_ID, messages=HELLO, system="Be brief.")
    assert counted.input_tokens == message.usage.input_tokens


def test_a_stream_with_thinking_and_tools(
    client: anthropic.Anthropic, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, "Hm.</think>See: " + CALL))
    with client.messages.stream(
        model=MODEL_ID,
        max_tokens=2000,
        messages=HELLO,
        tools=[WEATHER],
        thinking={"type": "enabled", "budget_tokens": 1024},
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text.strip() == "See:"
    thought, said, use = final.content
    assert (thought.type, thought.thinking) == ("thinking", "Hm.")
    assert said.type == "text"
    assert (use.type, use.name, use.input) == ("tool_use", "weather", {"city": "Paris"})
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens > 0


def test_a_tool_result_goes_back(client: anthropic.Anthropic, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, CALL), says(tokenizer, "Sunny."))
    first = client.messages.create(model=MODEL_ID, max_tokens=50, messages=HELLO, tools=[WEATHER])
    use: Any = first.content[0]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sun"}
    history: Any = [
        *HELLO,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(model=MODEL_ID, max_tokens=50, messages=history, tools=[WEATHER])
    assert second.content[0].text == "Sunny."
    assert "tool\nsun" in tokenizer.decode(engine.last.prompt)


@pytest.mark.parametrize(
    ("finish", "kind"),
    [
        (pb.REJECTED, "BadRequestError"),
        (pb.OVERLOADED, "RateLimitError"),
        (pb.FAILED, "InternalServerError"),
    ],
)
def test_errors_become_the_clients_exceptions(
    client: anthropic.Anthropic, engine: ScriptedEngine, finish: pb.Finish, kind: str
) -> None:
    import anthropic

    engine.default = refuse(finish, "the reason why")
    with pytest.raises(getattr(anthropic, kind), match="he reason why"):
        client.messages.create(model=MODEL_ID, max_tokens=5, messages=HELLO)


def test_a_stream_that_breaks_raises(client: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    import anthropic

    def breaks(run: Any) -> None:
        run.send(70)
        run.finish(pb.FAILED, error="out of memory")

    engine.default = breaks
    with (
        pytest.raises(anthropic.APIStatusError, match="ut of memory"),
        client.messages.stream(model=MODEL_ID, max_tokens=5, messages=HELLO) as stream,
    ):
        stream.get_final_message()


def test_an_unknown_model_is_a_not_found_error(client: anthropic.Anthropic) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude-9", max_tokens=5, messages=HELLO)
