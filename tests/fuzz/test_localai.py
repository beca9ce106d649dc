"""LocalAI's messages: protobuf holds what it likes in its strings, and each is read or refused by name."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorus.config.sections import Limits
from chorus.localai.chat import read_chat
from chorus.localai.errors import BadRequest, LoadFailed
from chorus.localai.options import FixedSampling, parse_options
from chorus.localai.requests import asked_tokens, sampling_of, stop_strings, wanted_logprobs
from chorus.messages.proto import localai_pb2 as wire
from chorus.serving.requests.measure import BadField
from tests.fuzz.foreign import values

LIMITS = Limits()
# Protobuf takes no lone surrogates, so none arrive.
texts = st.text(max_size=20) | values.map(json.dumps)
floats = st.floats(width=32)
whole = st.integers(-(2**31), 2**31 - 1)
tools = st.lists(
    st.fixed_dictionaries({}, optional={"type": values, "function": values | st.fixed_dictionaries({"name": values})})
)
messages = st.builds(
    wire.Message,
    role=st.text(max_size=8),
    content=texts,
    name=texts,
    tool_call_id=texts,
    reasoning_content=texts,
    tool_calls=texts,
)
requests = st.builds(
    wire.PredictOptions,
    Messages=st.lists(messages, max_size=3),
    Tools=texts | tools.map(json.dumps),
    ToolChoice=texts,
    LogitBias=texts | st.dictionaries(st.text(max_size=4), values).map(json.dumps),
    Metadata=st.dictionaries(st.sampled_from(["chat_template_kwargs", "enable_thinking", "reasoning_effort"]), texts),
    StopPrompts=st.lists(st.text(max_size=4), max_size=3),
    Temperature=floats,
    TopP=floats,
    MinP=floats,
    Penalty=floats,
    TopK=whole,
    Tokens=whole,
    Seed=whole,
    Logprobs=whole,
    TopLogprobs=whole,
)


@given(requests)
def test_a_request_is_read_or_refused(request: wire.PredictOptions) -> None:
    for part in (
        lambda: read_chat(request, {}, LIMITS),
        lambda: sampling_of(request, FixedSampling(), 512, LIMITS),
        lambda: asked_tokens(request, FixedSampling(), 100),
        lambda: wanted_logprobs(request),
        lambda: stop_strings(request, LIMITS),
    ):
        with suppress(BadRequest, BadField):
            part()


OPTIONS = ("temperature", "top_p", "seed", "max_tokens", "split", "ranks", "transport", "hostfile", "eos_token", "x")


@given(
    st.lists(st.tuples(st.sampled_from(OPTIONS), st.text(max_size=12)).map(":".join) | st.text(max_size=12), max_size=4)
)
def test_options_are_read_or_refused(lines: list[str]) -> None:
    with suppress(LoadFailed):
        parse_options(lines)


DEEP = "[" * 100_000


@pytest.mark.parametrize("field", ["Tools", "ToolChoice", "LogitBias"])
@pytest.mark.parametrize(
    "text", [DEEP, '{"a":' * 100_000, '"' + "9" * 100_000, "9" * 100_000, '{"1": 1e400}', '{"1": ' + "9" * 400 + "}"]
)
def test_a_field_that_no_reader_likes_is_refused(field: str, text: str) -> None:
    request = wire.PredictOptions(**{field: text})
    with suppress(BadRequest, BadField):
        read_chat(request, {}, LIMITS)
        sampling_of(request, FixedSampling(), 512, LIMITS)


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 100_000])
def test_calls_and_arguments_nested_without_end_are_refused(text: str) -> None:
    call = [{"function": {"name": "f", "arguments": text}}]
    for content in (text, json.dumps(call)):
        with suppress(BadRequest, BadField):
            read_chat(wire.PredictOptions(Messages=[wire.Message(role="assistant", tool_calls=content)]), {}, LIMITS)
    with suppress(BadRequest, BadField):
        read_chat(wire.PredictOptions(Metadata={"chat_template_kwargs": text}), {}, LIMITS)
