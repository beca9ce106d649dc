"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from chorus.api.access import record_of
from chorus.api.body import read_request
from chorus.api.openai_types import CompletionRequest
from chorus.api.respond import GenerationResponse, Performance, event, performance_body, usage_body
from chorus.api.service import Service
from chorus.frontend.generation import Delta, Finished


@dataclass(frozen=True)
class CompletionFormat:
    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool
    prompt_tokens: tuple[int, ...] | None

    def opening(self) -> bytes:
        return b""

    def piece(self, delta: Delta) -> bytes:
        if self.prompt_tokens is not None:
            return self._chunk(delta.text, tokens=list(delta.tokens))
        return self._chunk(delta.text) if delta.text else b""

    def closing(self, finished: Finished, performance: Performance) -> bytes:
        last = self._chunk("", finished.reason, performance=performance_body(performance))
        if not self.include_usage:
            return last
        return last + event({**self._head(), "choices": [], "usage": usage_body(finished)})

    def whole(self, text: str, tokens: list[int], finished: Finished, performance: Performance) -> dict[str, Any]:
        choice = _choice(text, finished.reason)
        if self.prompt_tokens is not None:
            choice |= {"token_ids": tokens, "prompt_token_ids": self.prompt_tokens}
        return {
            **self._head(),
            "choices": [choice],
            "usage": usage_body(finished),
            "performance": performance_body(performance),
        }

    def _chunk(
        self, text: str, finish_reason: str | None = None, tokens: list[int] | None = None, **more: Any
    ) -> bytes:
        if self.include_usage:
            more["usage"] = None
        choice = _choice(text, finish_reason)
        if tokens is not None:
            choice["token_ids"] = tokens
        return event({**self._head(), "choices": [choice], **more})

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions", response_model=None)
    async def completions(request: Request) -> Response:
        record = record_of(request.scope)
        body = await read_request(request, CompletionRequest, service.settings.limits)
        prompt = body.text_or_tokens
        generation, prompt_tokens, description = await service.prepare(
            body,
            prompt_field="prompt",
            tokenize=lambda: service.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt,
            size=len(prompt) if isinstance(prompt, str) else 0,
            label=record.request_id,
        )
        record.figures["prompt_tokens"] = prompt_tokens
        wire = CompletionFormat(
            id=f"cmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=service.settings.model_id,
            fingerprint=service.fingerprint(description),
            include_usage=body.wants_usage,
            prompt_tokens=generation.prompt if body.return_token_ids else None,
        )
        return GenerationResponse(service, generation, wire, stream=bool(body.stream))

    return routes


def _choice(text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
