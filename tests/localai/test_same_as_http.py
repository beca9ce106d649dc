"""The same request over gRPC and over HTTP gives the same answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.localai.process import Backend
from tests.localai.table import message
from tests.support.server import ChorusServer

QUESTION = [
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "What is the capital of France?"},
]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its template has no place for tools; its files show that it is good for embeddings."""
    folder = tmp_path_factory.mktemp("model") / "caller"
    shutil.copytree(tiny_model, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    modules = [{"type": "models.Pooling", "path": "pooling"}, {"type": "models.Normalize", "path": ""}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "pooling").mkdir()
    (folder / "pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    with ChorusServer(model, [], tmp_path_factory.mktemp("http")) as running:
        yield running


@pytest.fixture(scope="module")
def loaded(backend: Backend, model: Path) -> Backend:
    backend.load(model)
    return backend


def post(server: ChorusServer, path: str, body: dict[str, Any]) -> Any:
    response = httpx.post(f"{server.url}/v1/{path}", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(server: ChorusServer, path: str, body: dict[str, Any]) -> list[Any]:
    with httpx.stream("POST", f"{server.url}/v1/{path}", json={**body, "stream": True}, timeout=120) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def shown(text: str) -> str:
    """LocalAI is never sent half a character."""
    return text.replace("\ufffd", "")


SAMPLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"Temperature": 0}, {"temperature": 0}),
    (
        {"Temperature": 1.0, "Seed": 7, "TopP": 0.9, "TopK": 50},
        {"temperature": 1, "seed": 7, "top_p": 0.9, "top_k": 50},
    ),
    (
        {"Temperature": 0.7, "Seed": 3, "Penalty": 1.2, "PresencePenalty": 0.5, "LogitBias": '{"300": 5}'},
        {
            "temperature": 0.7,
            "seed": 3,
            "repetition_penalty": 1.2,
            "presence_penalty": 0.5,
            "logit_bias": {"300": 5},
        },
    ),
]


@pytest.mark.parametrize(("grpc_fields", "http_fields"), SAMPLINGS, ids=["greedy", "seeded", "penalties"])
def test_completions_are_equal(
    loaded: Backend, server: ChorusServer, grpc_fields: dict[str, Any], http_fields: dict[str, Any]
) -> None:
    ours = {"Prompt": "Many machines, one", "Tokens": 24, **grpc_fields}
    theirs = {"prompt": "Many machines, one", "max_tokens": 24, **http_fields}
    reply, answer = loaded.client.Predict(**ours), post(server, "completions", theirs)
    assert reply.message.decode() == shown(answer["choices"][0]["text"])
    assert (reply.prompt_tokens, reply.tokens) == (
        answer["usage"]["prompt_tokens"],
        answer["usage"]["completion_tokens"],
    )
    chunks = [chunk.message.decode() for chunk in loaded.client.PredictStream(**ours)]
    events = [event["choices"][0]["text"] for event in streamed(server, "completions", theirs) if event["choices"]]
    assert "".join(chunks) == shown("".join(events)) == reply.message.decode()


def test_chats_are_equal(loaded: Backend, server: ChorusServer) -> None:
    ours = {
        "Messages": [message(**entry) for entry in QUESTION],
        "UseTokenizerTemplate": True,
        "Tokens": 24,
        "Temperature": 1.0,
        "Seed": 5,
    }
    theirs = {"messages": QUESTION, "max_tokens": 24, "temperature": 1, "seed": 5}
    reply, answer = loaded.client.Predict(**ours), post(server, "chat/completions", theirs)
    assert reply.chat_deltas[0].content == shown(answer["choices"][0]["message"]["content"])
    assert reply.prompt_tokens == answer["usage"]["prompt_tokens"]
    deltas = [delta.content for chunk in loaded.client.PredictStream(**ours) for delta in chunk.chat_deltas]
    events = streamed(server, "chat/completions", theirs)
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    assert "".join(deltas) == shown(text)


def test_log_probabilities_are_equal(loaded: Backend, server: ChorusServer) -> None:
    reply = loaded.client.Predict(
        Messages=[message(**entry) for entry in QUESTION],
        Tokens=6,
        Logprobs=1,
        TopLogprobs=2,
        UseTokenizerTemplate=True,
    )
    answer = post(
        server,
        "chat/completions",
        {"messages": QUESTION, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 2},
    )
    ours = json.loads(reply.logprobs)["content"]
    theirs = answer["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in ours] == [entry["bytes"] for entry in theirs]
    assert [entry["logprob"] for entry in ours] == pytest.approx([entry["logprob"] for entry in theirs], abs=1e-4)


NAMED = {"type": "function", "function": {"name": "weather"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
CALLED = [
    *QUESTION,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
]


def with_tools(
    messages: list[dict[str, Any]], choice: Any, spelled: str, tokens: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same request over gRPC and over HTTP; LocalAI sends the client's JSON, or the bare word."""
    theirs = {"messages": messages, "tools": TOOLS, "tool_choice": choice, "max_tokens": tokens}
    calls = [json.dumps(entry["tool_calls"]) if "tool_calls" in entry else "" for entry in messages]
    ours = {
        "Messages": [
            message(**{**entry, "tool_calls": written}) for entry, written in zip(messages, calls, strict=True)
        ],
        "UseTokenizerTemplate": True,
        "Tools": json.dumps(TOOLS),
        "ToolChoice": spelled,
        "Tokens": tokens,
    }
    return {**ours, "Temperature": 1.0, "Seed": 2}, {**theirs, "temperature": 1, "seed": 2}


@pytest.mark.parametrize(
    ("choice", "spelled"),
    [("required", "required"), (NAMED, json.dumps(NAMED)), (NAMED, "weather")],
    ids=["required", "named as JSON", "named"],
)
def test_forced_tool_calls_are_equal(loaded: Backend, server: ChorusServer, choice: Any, spelled: str) -> None:
    ours, theirs = with_tools(QUESTION, choice, spelled, 400)
    calls = post(server, "chat/completions", theirs)["choices"][0]["message"]["tool_calls"]
    found = loaded.client.Predict(**ours).chat_deltas[0].tool_calls
    assert [(call.name, call.arguments) for call in found] == [
        (call["function"]["name"], call["function"]["arguments"]) for call in calls
    ]
    assert found[0].name == "weather"
    assert json.loads(found[0].arguments)["city"] in ("Paris", "Rome")


@pytest.mark.parametrize("messages", [QUESTION, CALLED], ids=["question", "after a call"])
@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_model_without_a_place_for_tools_is_told_of_them_as_over_http(
    loaded: Backend, server: ChorusServer, messages: list[dict[str, Any]], choice: str
) -> None:
    ours, theirs = with_tools(messages, choice, choice, 12)
    answer, reply = post(server, "chat/completions", theirs), loaded.client.Predict(**ours)
    assert reply.prompt_tokens == answer["usage"]["prompt_tokens"]
    assert reply.chat_deltas[0].content == shown(answer["choices"][0]["message"]["content"])
    untold = loaded.client.Predict(**{**ours, "Tools": ""})
    assert (reply.prompt_tokens > untold.prompt_tokens) == (choice == "auto")


def test_embeddings_are_equal(loaded: Backend, server: ChorusServer) -> None:
    result = loaded.client.Embedding(Embeddings="Many machines, one voice")
    answer = post(server, "embeddings", {"input": "Many machines, one voice"})
    assert list(result.embeddings) == pytest.approx(answer["data"][0]["embedding"], abs=1e-5)
    assert result.dim == len(result.embeddings) > 0
    assert result.prompt_tokens == result.tokens == answer["usage"]["prompt_tokens"]
    tokens = loaded.client.TokenizeString(Prompt="Many machines, one voice").tokens
    assert list(loaded.client.Embedding(EmbeddingTokens=tokens).embeddings) == list(result.embeddings)
