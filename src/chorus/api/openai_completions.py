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
from chorus.frontend.generation import Finished


@dataclass(frozen=True)
class CompletionFormat:
    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool

    def opening(self) -> bytes:
        return b""

    def text(self, text: str) -> bytes:
        return self._chunk(text)

    def closing(self, finished: Finished, performance: Performance) -> bytes:
        last = self._chunk("", finished.reason, performance=performance_body(performance))
        if not self.include_usage:
            return last
        return last + event({**self._head(), "choices": [], "usage": usage_body(finished)})

    def whole(self, text: str, finished: Finished, performance: Performance) -> dict[str, Any]:
        return {
            **self._head(),
            "choices": [_choice(text, finished.reason)],
            "usage": usage_body(finished),
            "performance": performance_body(performance),
        }

    def _chunk(self, text: str, finish_reason: str | None = None, **more: Any) -> bytes:
        if self.include_usage:
            more["usage"] = None
        return event({**self._head(), "choices": [_choice(text, finish_reason)], **more})

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
        )
        return GenerationResponse(service, generation, wire, stream=bool(body.stream))

    return routes


def _choice(text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
