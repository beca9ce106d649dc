"""What a response holds."""

from __future__ import annotations

from typing import Any, Literal

from chorus.api.answers import CachedTokens, PerformanceBody, ReasoningTokens, ResponseModel


class ResponseUsage(ResponseModel):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class Incomplete(ResponseModel):
    reason: str


class ResponseObject(ResponseModel):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete", "in_progress"]
    incomplete_details: Incomplete | None
    error: None
    output: list[dict[str, Any]]
    usage: ResponseUsage | None
    performance: PerformanceBody | None = None
    model: str
    previous_response_id: str | None
    instructions: str | None
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: dict[str, Any]
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    reasoning: dict[str, Any]
    max_output_tokens: int | None
    max_tool_calls: None
    store: bool
    background: Literal[False]
    truncation: Literal["disabled"]
    service_tier: Literal["default"]
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


class DeletedResponse(ResponseModel):
    id: str
    object: Literal["response"]
    deleted: Literal[True]
