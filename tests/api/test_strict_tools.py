"""`strict` tools where the model is free to call or not: whatever call it makes keeps to its schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer
from transformers import AutoTokenizer

from chorus.config.sections import ApiConfig
from chorus.localai.chat import read_chat
from chorus.messages.grammar import Grammar
from chorus.messages.proto import localai_pb2
from chorus.serving.prompt.answer_format import AnswerFormat
from chorus.serving.prompt.conversation import answer_grammar
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.serving.requests.measure import BadField
from chorus.serving.requests.request import GenerationRequest
from chorus.serving.requests.tool_grammar import CannotEnforce, check_enforceable, strict_calls
from chorus.serving.requests.tools import Tool, ToolChoice, Tools
from chorus.serving.workers import Workers
from chorus.text.grammar.forms import llguidance_form
from chorus.text.parsers import choose
from chorus.text.parsers.registry import FAMILIES
from chorus.text.parsers.toolkit.pieces import ToolCallArguments, ToolCallStart
from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import TOOL_TEMPLATE, ApiProcess
from tests.api.grammar_engine import _allowed, grammar_tokenizer, obey
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, say
from tests.api.test_tools import CHAT, CLOCK, QUESTION, WEATHER, ask
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model
from tests.support.tiny_tokenizer import write_tiny_tokenizer

CLOSING = ('"', "}", "]", ">")
CALLERS = [family.name for family in FAMILIES if family.calls is not None]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, CLOCK)}


# Bare text cannot hold the mark that ends it.
ODD = {
    "type": "function",
    "function": {"name": "odd", "parameters": {"type": "object", "properties": {"tag": {"enum": ["</parameter>"]}}}},
}


def strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


def enforceable() -> list[str]:
    names = []
    for family in FAMILIES:
        try:
            check_enforceable(family)
        except CannotEnforce:
            continue
        names.append(family.name)
    return names


# How a model that writes arguments as JSON goes about a call; spelled by letters, since the tokenizer has no tokens for
# it. Grammars of the other families are walked in tests/serving.
BEGINNINGS = {
    "hermes": "<tool_call>",
    "llama3": '{"name": "',
    "mistral": "[TOOL_CALLS]",
    "mistral_v11": "[TOOL_CALLS]",
    "kimi": "<|tool_calls_section_begin|>",
    "deepseek": "<｜tool▁calls▁begin｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜>",
    "harmony": "<|channel|>commentary to=functions.",
}


def test_every_family_that_calls_tools_can_be_held_to_a_schema() -> None:
    assert enforceable() == CALLERS


def speak(matcher: LLMatcher, tokenizer: LLTokenizer, random: Random, said: str) -> str:
    """A hot model that has said this: whatever is allowed, all alike, but for a liking to come to an end."""
    spoken = tokenizer.tokenize_str(said)
    assert matcher.try_consume_tokens(spoken) == len(spoken), said
    for _ in range(300):
        allowed = _allowed(matcher, tokenizer)
        if not allowed or (matcher.is_accepting() and random.random() < 0.5):
            break
        shown = {token: tokenizer.decode_str([token]) for token in allowed}
        closing = [token for token, piece in shown.items() if piece in CLOSING]
        token = random.choice(closing or allowed)
        assert matcher.consume_token(token)
        spoken.append(token)
    return str(tokenizer.decode_str(spoken))


@pytest.mark.parametrize("name", BEGINNINGS)
def test_every_call_that_is_begun_keeps_to_its_schema(name: str, grammar_tokens: LLTokenizer) -> None:
    family = choose(None, name)
    tools = [WEATHER, CLOCK]
    grammar = strict_calls(family, tools, ["weather", "clock"], True, {})
    before = "" if name in ("llama3", "harmony") else "Let me see. "
    called = 0
    for seed in range(25):
        matcher = LLMatcher(grammar_tokens, LLMatcher.grammar_from_lark(grammar.source))
        text = speak(matcher, grammar_tokens, Random(seed), before + BEGINNINGS[name])
        parser = family.new(tools=tools, thinks=False, starts_in_reasoning=False, id_factory=lambda: "1")
        calls: dict[int, tuple[str, str]] = {}
        for piece in [*parser.push(text), *parser.flush()]:
            if isinstance(piece, ToolCallStart):
                calls[piece.index] = (piece.name, "")
            if isinstance(piece, ToolCallArguments):
                calls[piece.index] = (calls[piece.index][0], calls[piece.index][1] + piece.text)
        if not matcher.is_accepting():
            continue
        for tool, arguments in calls.values():
            jsonschema.validate(json.loads(arguments), SCHEMAS[tool])
        called += len(calls)
    assert called >= 10


@pytest.mark.parametrize("name", CALLERS)
def test_text_without_a_call_stays_free(name: str, grammar_tokens: LLTokenizer) -> None:
    grammar = strict_calls(choose(None, name), [WEATHER], ["weather"], True, {})
    head = "<|channel|>final<|message|>" if name == "harmony" else ""
    for text in ("", "It rains < there; [see] {x} 1 > 0.\n\nRome?"):
        matcher = LLMatcher(grammar_tokens, LLMatcher.grammar_from_lark(grammar.source))
        consumed = grammar_tokens.tokenize_str(head + text)
        assert matcher.try_consume_tokens(consumed) == len(consumed)
        assert matcher.is_accepting() or (name == "harmony" and not head)


def test_a_call_cannot_begin_inside_a_thought_where_that_would_count(
    tool_model_path: Path, grammar_tokens: LLTokenizer
) -> None:
    form = AnswerFormat(choose("<think>", "kimi"), ServedTokenizer.load(tool_model_path))
    weather = Tool("weather", parameters=WEATHER["function"]["parameters"], strict=True)
    tools = Tools((weather,), ToolChoice("auto"))
    grammar = form.grammar(tools, None)
    assert grammar is not None
    thinking = form.after_reasoning(grammar, tools, [])
    for thought, possible in (("it rains", True), ("<|tool_calls_section_begin|>", False)):
        matcher = LLMatcher(grammar_tokens, llguidance_form(thinking.kind, thinking.source, thinking.parts))
        tokens = grammar_tokens.tokenize_str(f"<think>{thought}</think>Yes.")
        # Without the closing tag it may still be text; with it, only a thought can hold the mark.
        assert (matcher.try_consume_tokens(tokens) == len(tokens)) is possible


def test_tools_that_are_not_strict_may_have_any_object(grammar_tokens: LLTokenizer) -> None:
    grammar = strict_calls(choose(None, "hermes"), [WEATHER, CLOCK], ["weather"], True, {})
    for call, possible in (
        ('{"name": "clock", "arguments": {"anything": [1]}}', True),
        ('{"name": "weather", "arguments": {"anything": [1]}}', False),
    ):
        matcher = LLMatcher(grammar_tokens, LLMatcher.grammar_from_lark(grammar.source))
        tokens = grammar_tokens.tokenize_str(f"<tool_call>\n{call}\n</tool_call>")
        assert (matcher.try_consume_tokens(tokens) == len(tokens)) is possible


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": QUESTION, "tools": [strict(WEATHER)]}),
        (
            "/v1/responses",
            {"input": "Hello", "tools": [{"type": "function", "strict": True, **WEATHER["function"]}]},
        ),
        (
            "/v1/messages",
            {
                "messages": QUESTION,
                "max_tokens": 100,
                "tools": [{"name": "weather", "strict": True, "input_schema": SCHEMAS["weather"]}],
            },
        ),
    ],
)
def test_strict_reaches_the_engine_as_a_grammar_in_every_protocol(
    tool_http: httpx.Client, engine: ScriptedEngine, grammar_tokens: LLTokenizer, path: str, body: dict[str, Any]
) -> None:
    engine.next(obey(grammar_tokens))
    response = tool_http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert engine.last.HasField("grammar")
    assert "weather" in engine.last.grammar.parts[0].source


def test_without_strict_a_model_is_left_alone(
    tool_http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    engine.next(say(tokenizer.encode("Sunny.", special=False)))
    assert ask(tool_http)["message"]["content"] == "Sunny."
    assert not engine.last.HasField("grammar")


def test_strict_is_refused_by_name_where_the_format_cannot_be_held_to_it(
    start_api: Callable[..., ApiProcess],
) -> None:
    api = start_api(tool_parser="qwen3_coder")
    for choice in ("auto", "required"):
        body = {"messages": QUESTION, "tools": [strict(WEATHER), CLOCK, strict(ODD)], "tool_choice": choice}
        error = httpx.post(f"{api.url}{CHAT}", json=body, timeout=DEADLINE).json()["error"]
        assert error["param"] == "tools[2]", choice
        for word in ("qwen3_coder", "'odd'", "'tag'", "</parameter>", "strict"):
            assert word in error["message"], choice


def test_a_strict_tool_whose_schema_cannot_be_enforced_is_named(tool_http: httpx.Client) -> None:
    broken = {"name": "broken", "strict": True, "parameters": {"type": "object", "properties": {"x": {"type": "blob"}}}}
    body = {"messages": QUESTION, "tools": [WEATHER, {"type": "function", "function": broken}]}
    error = tool_http.post(CHAT, json=body).json()["error"]
    assert (error["param"], error["code"]) == ("tools[1]", "invalid_grammar")


def model_with_a_call_token(folder: Path) -> tuple[Path, int]:
    """Its tokenizer has a token that opens calls, as Qwen's does: a bias can make a random model use it."""
    model = write_tiny_model(folder / "caller", "llama", vocab_size=513, max_position_embeddings=4096)
    write_tiny_tokenizer(model, 512)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["<tool_call>"])
    tokenizer.chat_template = TOOL_TEMPLATE.replace("<think>", "").replace("</think>", "")
    tokenizer.save_pretrained(model)
    return model, tokenizer.convert_tokens_to_ids("<tool_call>")


def test_a_call_that_a_token_opens_is_held_to_its_schema_too(tmp_path: Path) -> None:
    model, call_token = model_with_a_call_token(tmp_path)
    tokens = grammar_tokenizer(str(model))
    grammar = strict_calls(choose(None, "hermes"), [WEATHER], ["weather"], True, {"<tool_call>": call_token})
    for said in ("", "Let me see. "):
        matcher = LLMatcher(tokens, LLMatcher.grammar_from_lark(grammar.source))
        assert matcher.try_consume_tokens([*tokens.tokenize_str(said), call_token]) > 0
        assert {tokens.decode_str([token])[:1] for token in _allowed(matcher, tokens)} == {"\n"}


def test_a_hot_model_calls_strict_tools_only_as_their_schemas_say(tmp_path: Path) -> None:
    parameters = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "pattern": "^[A-Z][a-z]{2,5}$"},
            "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 9}, "maxItems": 3},
            "unit": {"enum": ["C", "F", None]},
        },
        "required": ["city", "days", "unit"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "forecast", "strict": True, "parameters": parameters}}
    model, call_token = model_with_a_call_token(tmp_path)

    def ask(seed: int) -> dict[str, Any]:
        body = {
            "messages": QUESTION,
            "tools": [tool],
            "temperature": 1.5,
            "seed": seed,
            "max_tokens": 250,
            "logit_bias": {str(call_token): 100 if seed % 2 else 4},
            "parallel_tool_calls": False,
        }
        response = http.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        choice: dict[str, Any] = response.json()["choices"][0]
        return choice

    with (
        ChorusServer(model, [], tmp_path) as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
        ThreadPoolExecutor(12) as pool,
    ):
        choices = list(pool.map(ask, range(12)))
    finished = 0
    for choice in choices:
        if choice["finish_reason"] == "tool_calls":
            (call,) = choice["message"]["tool_calls"]
            assert call["function"]["name"] == "forecast"
            jsonschema.validate(json.loads(call["function"]["arguments"]), parameters)
            finished += 1
    assert finished >= 6


def test_strict_holds_over_localai_too(tool_model_path: Path) -> None:
    tokenizer = ServedTokenizer.load(tool_model_path)

    def grammar_of(asked: GenerationRequest, parser: str) -> Grammar | None:
        return asyncio.run(answer_grammar(asked, AnswerFormat(choose(None, parser), tokenizer), Workers(1)))

    request = localai_pb2.PredictOptions(Tools=json.dumps([strict(WEATHER), CLOCK]))
    chat = read_chat(request, {}, ApiConfig())
    assert chat.tools.strict == {"weather"}
    grammar = grammar_of(chat, "hermes")
    assert grammar is not None
    assert "Paris" in grammar.source
    odd = read_chat(localai_pb2.PredictOptions(Tools=json.dumps([strict(ODD)])), {}, ApiConfig())
    with pytest.raises(BadField, match=r"qwen3_coder.*'odd'.*'tag'"):
        grammar_of(odd, "qwen3_coder")
