from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from chorus.messages.proto import engine_pb2 as pb
from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import MODEL_ID
from tests.api.scripted_engine import Run, ScriptedEngine, say

PATH = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def text_of(tokenizer: Tokenizer, engine: ScriptedEngine) -> str:
    return tokenizer.decode(engine.last.prompt)


def says(tokenizer: Tokenizer, text: str, finish: pb.Finish = pb.STOP) -> Any:
    return say(tokenizer.encode(text, special=False), finish)


def create(http: httpx.Client, **body: Any) -> dict[str, Any]:
    response = http.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def events_of(http: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    response = http.post(PATH, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    events = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def test_a_text_in_and_a_message_out(tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, "Paris."))
    answer = create(tool_http, input="Which city?", instructions="Be brief.", metadata={"a": "b"})
    assert answer["status"] == "completed"
    assert answer["model"] == MODEL_ID
    (item,) = answer["output"]
    assert (item["type"], item["role"], item["content"][0]["text"]) == ("message", "assistant", "Paris.")
    assert answer["usage"]["input_tokens"] == len(engine.last.prompt)
    assert answer["metadata"] == {"a": "b"}
    prompt = text_of(tokenizer, engine)
    assert prompt.startswith("system\nBe brief.")
    assert "user\nWhich city?" in prompt


def test_a_stream_tells_the_items_life(tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, "<think>Hm.</think>See: " + CALL))
    events = events_of(tool_http, input="Weather?", tools=[WEATHER])
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    done = [event["item"]["type"] for event in events if event["type"] == "response.output_item.done"]
    assert done == ["reasoning", "message", "function_call"]
    order = list(dict.fromkeys(kind.removeprefix("response.") for kind in kinds))
    assert order.index("reasoning_text.delta") < order.index("output_text.delta")
    assert order.index("output_text.done") < order.index("function_call_arguments.delta")
    joined = "".join(event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta")
    assert json.loads(joined) == {"city": "Paris"}
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == done
    assert final["output"][2]["arguments"] == joined
    assert all(item["status"] == "completed" for item in final["output"])
    assert final["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_an_answer_cut_off_is_incomplete(tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.next(says(tokenizer, "Par", pb.LENGTH), says(tokenizer, "Par", pb.LENGTH))
    answer = create(tool_http, input="x", max_output_tokens=3)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["status"] == "incomplete"
    assert events_of(tool_http, input="x", max_output_tokens=3)[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_from_a_stored_response(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    engine.next(says(tokenizer, "<think>Hm.</think>" + CALL), says(tokenizer, "Sunny."))
    body = {"input": "Weather in Paris?", "tools": [WEATHER], "instructions": "Only once."}
    first = events_of(tool_http, **body)[-1]["response"] if stream else create(tool_http, **body)
    call = first["output"][-1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
    second = create(tool_http, input=[result], previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    prompt = text_of(tokenizer, engine)
    assert "user\nWeather in Paris?" in prompt
    assert '<think>\nHm.\n</think>\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}' in prompt
    assert "tool\nsun" in prompt
    assert "Only once." not in prompt


def test_the_same_conversation_sent_as_items(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, "<think>Hm.</think>" + CALL), says(tokenizer, "x"), says(tokenizer, "x"))
    first = create(tool_http, input="Weather in Paris?", tools=[WEATHER])
    result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "sun"}
    create(tool_http, input=[result], previous_response_id=first["id"])
    by_id = list(engine.last.prompt)
    create(tool_http, input=[{"role": "user", "content": "Weather in Paris?"}, *first["output"], result])
    assert list(engine.last.prompt) == by_id


def test_a_response_can_be_fetched_and_deleted(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, "x"), says(tokenizer, "y"))
    kept = create(tool_http, input="x")
    assert tool_http.get(f"{PATH}/{kept['id']}").json() == kept
    assert tool_http.delete(f"{PATH}/{kept['id']}").json()["deleted"] is True
    assert tool_http.get(f"{PATH}/{kept['id']}").status_code == 404
    unkept = create(tool_http, input="x", store=False)
    refused = tool_http.post(PATH, json={"input": "y", "previous_response_id": unkept["id"]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "previous_response_id"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_the_text_only(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    engine.next(says(tokenizer, "<think>Hm.</think>Paris 😀"))
    body = {"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    answer = events_of(tool_http, **body)[-1]["response"] if stream else create(tool_http, **body)
    logprobs = answer["output"][-1]["content"][0]["logprobs"]
    spelled = b"".join(bytes(entry["bytes"]) for entry in logprobs).decode()
    assert spelled.endswith("Paris 😀")
    assert "Hm" not in spelled


def test_allowed_tools_leave_the_others_out(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(says(tokenizer, "x"))
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]}
    create(tool_http, input="x", tools=[WEATHER, {"type": "function", "name": "bomb"}], tool_choice=choice)
    assert "bomb" not in text_of(tokenizer, engine)
    assert "weather" in text_of(tokenizer, engine)


def test_a_failure_midway_is_an_error_event(tool_http: httpx.Client, engine: ScriptedEngine) -> None:
    def fails(run: Run) -> None:
        run.send(70)
        run.finish(pb.FAILED, error="out of memory")

    engine.next(fails)
    last = events_of(tool_http, input="x")[-1]
    assert (last["type"], last["error"]["code"]) == ("error", "engine_failed")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": "x", "truncation": "auto"}, "truncation"),
        ({"input": "x", "include": ["file_search_call.results"]}, "include[0]"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        (
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "blob"}}}},
            "text.format",
        ),
        ({"input": "x", "colour": 1}, "colour"),
    ],
)
def test_a_wrong_field_is_named(tool_http: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = tool_http.post(PATH, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
