"""PredictOptions in, Replies out: the parts that need no engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from chorus.config.sampling import DefaultSampling
from chorus.config.sections import ApiConfig
from chorus.localai.chat import read_chat
from chorus.localai.errors import BadRequest
from chorus.localai.options import FixedSampling
from chorus.localai.parent_watch import parent_gone, watch_seconds
from chorus.localai.prepare import is_chat
from chorus.localai.replies import ReplyWriter, whole
from chorus.localai.requests import (
    asked_tokens,
    grammar_of,
    is_uncached,
    logit_bias,
    metadata_name,
    sampling_of,
    template_arguments,
    wanted_logprobs,
)
from chorus.messages.engine import TokenLogprobs
from chorus.messages.proto import localai_pb2 as wire
from chorus.serving.generation import AnswerDelta
from chorus.serving.requests.measure import BadField
from chorus.text.parsers import choose
from chorus.text.parsers.toolkit.pieces import Content, Reasoning

LIMITS = ApiConfig()
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def sampling(fixed: FixedSampling | None = None, **fields: Any) -> Any:
    return sampling_of(wire.PredictOptions(**fields), fixed or FixedSampling(), vocabulary=100, limits=LIMITS)


def test_zero_is_greedy_for_temperature_and_off_for_the_rest() -> None:
    chosen = sampling()
    assert chosen.temperature == 0
    assert (chosen.top_p, chosen.top_k, chosen.min_p, chosen.repetition_penalty) == (1, 0, 0, 1)


def test_a_seed_is_kept_and_no_seed_is_drawn() -> None:
    assert sampling(Seed=7).seed == 7
    assert sampling(Seed=0).seed != sampling(Seed=0).seed
    assert sampling(Seed=-1).seed > 0


def test_what_the_models_options_fix_goes_over_the_request() -> None:
    fixed = FixedSampling(temperature=0.2, top_k=5, seed=9)
    chosen = sampling(fixed, Temperature=0.9, TopK=50, TopP=0.5, Seed=3)
    assert (chosen.temperature, chosen.top_k, chosen.top_p, chosen.seed) == (0.2, 5, 0.5, 9)


def test_what_the_settings_call_usual_holds_where_a_request_says_nothing() -> None:
    usual = DefaultSampling(temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1)
    silent = sampling_of(wire.PredictOptions(), FixedSampling(), 100, LIMITS, usual)
    assert (silent.top_p, silent.top_k, silent.min_p, silent.repetition_penalty) == (0.9, 40, 0.05, 1.1)
    assert silent.temperature == 0, "LocalAI says a temperature with every request, so zero is one"
    asked = wire.PredictOptions(TopP=0.5, TopK=-1, MinP=0.25, Penalty=1.5)
    chosen = sampling_of(asked, FixedSampling(top_p=0.25), 100, LIMITS, usual)
    assert (chosen.top_p, chosen.top_k, chosen.min_p, chosen.repetition_penalty) == (0.25, 0, 0.25, 1.5)
    assert asked_tokens(wire.PredictOptions(), FixedSampling(), room=90, usual=30) == 30
    assert asked_tokens(wire.PredictOptions(Tokens=40), FixedSampling(), room=90, usual=30) == 40


@pytest.mark.parametrize(
    ("tokens", "ceiling", "given"),
    [(0, None, 90), (8, None, 8), (500, None, 90), (0, 20, 20), (8, 20, 8), (50, 20, 20)],
)
def test_zero_tokens_mean_the_rest_of_the_context(tokens: int, ceiling: int | None, given: int) -> None:
    assert asked_tokens(wire.PredictOptions(Tokens=tokens), FixedSampling(max_tokens=ceiling), room=90) == given


@pytest.mark.parametrize("fields", [{"Temperature": -1}, {"TopP": 2}, {"MinP": float("nan")}, {"Penalty": -0.5}])
def test_a_number_out_of_range_is_named(fields: dict[str, float]) -> None:
    with pytest.raises(BadRequest, match=next(iter(fields))):
        sampling(**fields)


def test_logit_bias_is_json_of_known_tokens() -> None:
    assert logit_bias('{"5": -100, "7": 1.5}', 100, LIMITS) == {5: -100.0, 7: 1.5}
    for bad in ("[1]", "{", '{"100": 1}', '{"x": 1}', '{"5": "much"}'):
        with pytest.raises(BadRequest, match="LogitBias"):
            logit_bias(bad, 100, LIMITS)


@pytest.mark.parametrize(
    ("given", "wanted"), [((0, 0), (False, 0)), ((1, 0), (True, 0)), ((1, 3), (True, 3)), ((5, 0), (True, 5))]
)
def test_logprobs_are_asked_for_as_chat_or_as_completions_do(given: tuple[int, int], wanted: Any) -> None:
    assert wanted_logprobs(wire.PredictOptions(Logprobs=given[0], TopLogprobs=given[1])) == wanted


def test_a_gbnf_grammar_is_told_from_lark_and_named_by_its_field() -> None:
    for source, kind in (('root ::= "yes" | "no"', "gbnf"), ('start: "yes" | "no"', "lark")):
        grammar = grammar_of(wire.PredictOptions(Grammar=source), LIMITS)
        assert grammar is not None
        assert (grammar.kind, grammar.source) == (kind, source)
        assert [origin.name for origin in grammar.origins] == ["Grammar"]


@pytest.mark.parametrize(
    ("fields", "uncached"),
    [
        ({}, False),
        ({"ModelIdentity": "m", "PromptCacheAll": True}, False),
        ({"ModelIdentity": "m"}, True),
        ({"ModelIdentity": "m", "PromptCacheAll": True, "PromptCacheRO": True}, True),
        ({"PromptCacheRO": True}, True),
    ],
)
def test_a_model_whose_owner_wants_no_prompt_cache_leaves_nothing(fields: dict[str, Any], uncached: bool) -> None:
    assert is_uncached(wire.PredictOptions(**fields)) == uncached


def test_metadata_reaches_the_template() -> None:
    request = wire.PredictOptions(
        Metadata={
            "enable_thinking": "false",
            "reasoning_effort": "high",
            "chat_template_kwargs": '{"style": "short", "enable_thinking": true}',
        }
    )
    arguments = template_arguments(request, {"bos_token": "<s>"}, LIMITS)
    assert arguments == {"bos_token": "<s>", "style": "short", "enable_thinking": False, "reasoning_effort": "high"}


def test_metadata_names_a_conversation_within_bounds() -> None:
    request = wire.PredictOptions(Metadata={"conversation_id": "c", "cache_salt": "x" * 1025})
    assert metadata_name(request, "conversation_id") == "c"
    with pytest.raises(BadField, match="1024"):
        metadata_name(request, "cache_salt")
    assert metadata_name(wire.PredictOptions(), "conversation_id") == ""


def test_arguments_of_earlier_calls_are_decoded_before_templating() -> None:
    calls = [{"id": "c1", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]
    request = wire.PredictOptions(
        Messages=[
            wire.Message(role="assistant", tool_calls=json.dumps(calls)),
            wire.Message(role="tool", content="12 degrees", tool_call_id="c1", name="weather"),
        ]
    )
    first, second = read_chat(request, {}, LIMITS).messages
    assert first["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Paris"}}
    assert second == {"role": "tool", "content": "12 degrees", "tool_call_id": "c1", "name": "weather"}


@pytest.mark.parametrize(
    ("choice", "tools", "forced"),
    [
        ("", 1, None),
        ("auto", 1, None),
        ('"auto"', 1, None),
        ("none", 0, None),
        ("required", 1, "required"),
        ('{"type": "function", "function": {"name": "weather"}}', 1, {"name": "weather"}),
        ("weather", 1, {"name": "weather"}),
    ],
)
def test_tool_choice_comes_as_a_word_or_as_json(choice: str, tools: int, forced: Any) -> None:
    offered = read_chat(wire.PredictOptions(Tools=json.dumps([WEATHER]), ToolChoice=choice), {}, LIMITS).tools
    assert (len(offered.functions), offered.forced) == (tools, forced)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"Tools": "{"}, "Tools"),
        ({"Tools": '[{"type": "function"}]'}, r"Tools\[0\]"),
        ({"Tools": '[{"name": "f", "parameters": 5}]'}, r"Tools\[0\].*schema"),
        ({"Tools": json.dumps([WEATHER]), "ToolChoice": "stocks"}, "stocks"),
        ({"Messages": [wire.Message(content="hi")]}, r"Messages\[0\]"),
        ({"Messages": [wire.Message(role="assistant", tool_calls="no")]}, r"Messages\[0\] tool_calls"),
        ({"Metadata": {"enable_thinking": "perhaps"}}, "enable_thinking"),
        ({"Metadata": {"chat_template_kwargs": "no"}}, "chat_template_kwargs"),
    ],
)
def test_a_broken_chat_request_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        read_chat(wire.PredictOptions(**fields), {}, LIMITS)


def test_messages_are_rendered_here_unless_localai_did_it() -> None:
    messages = [wire.Message(role="user", content="hi")]
    assert is_chat(wire.PredictOptions(Messages=messages, UseTokenizerTemplate=True, Prompt="rendered"))
    assert is_chat(wire.PredictOptions(Messages=messages))
    assert not is_chat(wire.PredictOptions(Messages=messages, Prompt="rendered"))
    assert not is_chat(wire.PredictOptions(Prompt="rendered", UseTokenizerTemplate=True))


class Letters:
    """A tokenizer whose tokens are letters."""

    def token_text(self, token: int) -> str:
        return chr(token)

    def token_bytes(self, token: int) -> bytes:
        return chr(token).encode()


def reply_to(text: str, chat: bool = True, size: int = 3) -> list[wire.Reply]:
    """The replies to a text that a Hermes model wrote, in pieces of this size."""
    family = choose("<tool_call> <think>", "hermes")
    parser = family.new(tools=[WEATHER], thinks=True, starts_in_reasoning=False, id_factory=lambda: "call_1")
    writer, replies = ReplyWriter(Letters(), prompt_tokens=4, chat=chat), []
    pieces = [parser.push(text[at : at + size]) for at in range(0, len(text), size)] + [parser.flush()]
    for number, found in enumerate(pieces):
        logprobs = (TokenLogprobs(-1.0, ((66, -1.0),)),)
        reply = writer.chunk(AnswerDelta(0, tuple(found), (65 + number,), logprobs))
        replies += [reply] if reply else []
    return replies


CALL = '<think>Rain?</think>Let me see.<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_markup_and_reasoning_never_reach_the_content(size: int) -> None:
    replies = reply_to(CALL, size=size)
    deltas = [delta for reply in replies for delta in reply.chat_deltas]
    assert "".join(delta.content for delta in deltas).strip() == "Let me see."
    assert "".join(reply.message.decode() for reply in replies).strip() == "Let me see."
    assert "".join(delta.reasoning_content for delta in deltas) == "Rain?"
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert {call.index for call in calls} == {0}
    assert [call.name for call in calls if call.name] == ["weather"]
    assert json.loads("".join(call.arguments for call in calls)) == {"city": "Paris"}


def test_a_whole_reply_joins_the_calls_of_an_index() -> None:
    reply = whole(reply_to(CALL))
    assert len(reply.chat_deltas) == 1
    delta = reply.chat_deltas[0]
    assert delta.reasoning_content == "Rain?"
    (call,) = delta.tool_calls
    assert (call.index, call.id, call.name) == (0, "call_1", "weather")
    assert json.loads(call.arguments) == {"city": "Paris"}


def test_half_a_call_of_a_whole_reply_that_its_limit_cut_off_is_none() -> None:
    replies = reply_to(CALL.partition('"Paris"')[0])
    (left,) = whole(replies).chat_deltas[0].tool_calls
    assert left.name == "weather", "the model itself ended it there"
    delta = whole(replies, cut_off=True).chat_deltas[0]
    assert not delta.tool_calls
    assert delta.content.strip() == "Let me see."
    assert len(whole(reply_to(CALL), cut_off=True).chat_deltas[0].tool_calls) == 1


def test_usage_grows_from_chunk_to_chunk() -> None:
    tokens = [reply.tokens for reply in reply_to(CALL, size=2)]
    assert tokens == sorted(tokens)
    assert tokens[0] >= 1


def test_half_a_character_is_never_shown() -> None:
    writer = ReplyWriter(Letters(), 1, chat=True)
    reply = writer.chunk(AnswerDelta(0, (Content("caf\ufffd"), Reasoning("\ufffd")), (1,)))
    assert reply is not None
    assert reply.message == b"caf"
    assert [delta.content for delta in reply.chat_deltas] == ["caf"]


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, 2.0),
        ({"LOCALAI_BACKEND_PARENT_WATCH": "true"}, 2.0),
        ({"LOCALAI_BACKEND_PARENT_WATCH": "Off"}, None),
        ({"LOCALAI_BACKEND_PARENT_WATCH": "0"}, None),
        ({"LOCALAI_BACKEND_PARENT_WATCH_INTERVAL": "500ms"}, 0.5),
        ({"LOCALAI_BACKEND_PARENT_WATCH_INTERVAL": "1m"}, 60.0),
        ({"LOCALAI_BACKEND_PARENT_WATCH_INTERVAL": "3"}, 3.0),
        ({"LOCALAI_BACKEND_PARENT_WATCH_INTERVAL": "soon"}, 2.0),
    ],
)
def test_the_parent_watch_is_on_unless_told_otherwise(variables: dict[str, str], seconds: float | None) -> None:
    assert watch_seconds(variables) == seconds


def test_the_watch_ends_when_the_parent_is_another_one() -> None:
    parents = iter([7, 7, 1])
    asyncio.run(asyncio.wait_for(parent_gone(0.001, 7, lambda: next(parents)), 60))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"Messages": [wire.Message(role="user")] * 4097}, "Messages: at most 4096 messages"),
        ({"Tools": "[" * 100_000}, "Tools: .*64 levels"),
        ({"Messages": [wire.Message(role="assistant", tool_calls="[" * 5000)]}, "Messages.*64 levels"),
        (
            {"Metadata": {"chat_template_kwargs": '{"a": ' + "[" * 80 + "]" * 80 + "}"}},
            "kwargs.*64 levels",
        ),
    ],
)
def test_a_chat_request_that_holds_too_much_is_named_with_the_limit(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadField, match=named):
        read_chat(wire.PredictOptions(**fields), {}, LIMITS)
