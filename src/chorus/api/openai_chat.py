"""POST /v1/chat/completions."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from chorus.api.access import record_of
from chorus.api.body import read_request
from chorus.api.openai_types import AssistantMessage, ChatRequest, ToolMessage
from chorus.api.respond import GenerationResponse, Performance, event, performance_body, usage_body
from chorus.api.service import Service
from chorus.frontend.generation import Delta, Finished


@dataclass(frozen=True)
class ChatFormat:
    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool
    prompt_tokens: tuple[int, ...] | None

    def opening(self) -> bytes:
        ids = {} if self.prompt_tokens is None else {"prompt_token_ids": self.prompt_tokens}
        return self._chunk({"role": "assistant", "content": ""}, **ids)

    def piece(self, delta: Delta) -> bytes:
        if self.prompt_tokens is not None:
            return self._chunk({"content": delta.text}, tokens=list(delta.tokens))
        return self._chunk({"content": delta.text}) if delta.text else b""

    def closing(self, finished: Finished, performance: Performance) -> bytes:
        last = self._chunk({}, finished.reason, performance=performance_body(performance))
        if not self.include_usage:
            return last
        return last + event({**self._head("chat.completion.chunk"), "choices": [], "usage": usage_body(finished)})

    def whole(self, text: str, tokens: list[int], finished: Finished, performance: Performance) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": finished.reason,
        }
        head = self._head("chat.completion")
        if self.prompt_tokens is not None:
            choice["token_ids"] = tokens
            head["prompt_token_ids"] = self.prompt_tokens
        return {
            **head,
            "choices": [choice],
            "usage": usage_body(finished),
            "performance": performance_body(performance),
        }

    def _chunk(
        self, delta: dict[str, Any], finish_reason: str | None = None, tokens: list[int] | None = None, **more: Any
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        if tokens is not None:
            choice["token_ids"] = tokens
        if self.include_usage:
            more["usage"] = None
        return event({**self._head("chat.completion.chunk"), "choices": [choice], **more})

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def template_messages(body: ChatRequest) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: no developer role, and tool arguments as objects."""
    messages: list[dict[str, Any]] = []
    for message in body.messages:
        # The union's last member only exists to refuse unknown roles, so every message here has a text.
        role = "system" if message.role == "developer" else message.role
        entry: dict[str, Any] = {"role": role, "content": getattr(message, "text", "")}
        if isinstance(message, AssistantMessage) and message.tool_calls:
            entry["tool_calls"] = [
                {
                    "id": call.id,
                    "type": call.type,
                    "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
                }
                for call in message.tool_calls
            ]
        if isinstance(message, ToolMessage):
            entry["tool_call_id"] = message.tool_call_id
        if name := getattr(message, "name", None):
            entry["name"] = name
        messages.append(entry)
    return messages


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: Request) -> Response:
        record = record_of(request.scope)
        body = await read_request(request, ChatRequest, service.settings.limits)
        messages = template_messages(body)
        generation, prompt_tokens, description = await service.prepare(
            body,
            prompt_field="messages",
            tokenize=lambda: service.tokenizer.chat_prompt(messages),
            size=sum(len(message["content"]) for message in messages),
            label=record.request_id,
        )
        record.figures["prompt_tokens"] = prompt_tokens
        wire = ChatFormat(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=service.settings.model_id,
            fingerprint=service.fingerprint(description),
            include_usage=body.wants_usage,
            prompt_tokens=generation.prompt if body.return_token_ids else None,
        )
        return GenerationResponse(service, generation, wire, stream=bool(body.stream))

    return routes


def _arguments(text: str) -> Any:
    """Models write the arguments of a call as JSON, mostly; what is none stays as it was written."""
    try:
        return json.loads(text)
    except ValueError:
        return text
