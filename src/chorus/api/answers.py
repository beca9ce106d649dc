"""Parts of answers that several protocols share, for the API's description of itself."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ResponseModel(BaseModel):
    """Says what an answer holds. Answers are written as plain objects, and a test holds them against this."""

    model_config = ConfigDict(extra="forbid")


class CachedTokens(ResponseModel):
    cached_tokens: int


class ReasoningTokens(ResponseModel):
    reasoning_tokens: int


class UsageBody(ResponseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class PerformanceBody(ResponseModel):
    prompt_tokens_per_second: float | None
    generation_tokens_per_second: float | None
    time_to_first_token_seconds: float | None
    queue_seconds: float
    cached_tokens: int
    stored_tokens: int


class ErrorDetail(ResponseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


class AnthropicErrorDetail(ResponseModel):
    type: str
    message: str


class AnthropicErrorBody(BaseModel):
    type: str
    error: AnthropicErrorDetail
    request_id: str | None = None
