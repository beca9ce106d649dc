"""What a chat answer holds."""

from __future__ import annotations

from typing import Any, Literal

from chorus.api.answers import Described, PerformanceBody, UsageBody


class CalledFunction(Described):
    name: str
    arguments: str


class AnswerToolCall(Described):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Described):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    reasoning_content: str | None = None
    tool_calls: list[AnswerToolCall] | None = None


class CandidateLogprob(Described):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(CandidateLogprob):
    top_logprobs: list[CandidateLogprob]


class ChoiceLogprobs(Described):
    content: list[TokenLogprob]
    refusal: None


class ChatChoice(Described):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] | None = None


class ChatCompletion(Described):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody
    performance: PerformanceBody
    prompt_token_ids: list[int] | None = None
