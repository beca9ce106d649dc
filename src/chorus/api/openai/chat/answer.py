"""What a chat answer holds."""

from __future__ import annotations

from typing import Any, Literal

from chorus.api.answers import PerformanceBody, ResponseModel, UsageBody


class CalledFunction(ResponseModel):
    name: str
    arguments: str


class AnswerToolCall(ResponseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(ResponseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    reasoning_content: str | None = None
    tool_calls: list[AnswerToolCall] | None = None


class CandidateLogprob(ResponseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(CandidateLogprob):
    top_logprobs: list[CandidateLogprob]


class ChoiceLogprobs(ResponseModel):
    content: list[TokenLogprob]
    refusal: None


class ChatChoice(ResponseModel):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] | None = None


class ChatCompletion(ResponseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody
    performance: PerformanceBody
    prompt_token_ids: list[int] | None = None
