"""What an Anthropic message holds."""

from __future__ import annotations

from typing import Any, Literal

from chorus.api.answers import ResponseModel


class ThinkingTokens(ResponseModel):
    thinking_tokens: int


class MessageUsage(ResponseModel):
    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    cache_creation: None
    output_tokens: int
    output_tokens_details: ThinkingTokens
    server_tool_use: None
    service_tier: Literal["standard"]
    inference_geo: None


class AnthropicMessage(ResponseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    stop_details: None
    container: None
    usage: MessageUsage


class TokenCount(ResponseModel):
    input_tokens: int
