"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from chorus.api.body import read_request
from chorus.api.openai.chat.answer import ChatCompletion
from chorus.api.openai.chat.request import AssistantMessage, ChatRequest, Message, ToolCall, ToolMessage
from chorus.api.openai.chat.wire import ChatFormat
from chorus.api.openai.choices import broken_off
from chorus.api.openapi import UNVERSIONED, operation
from chorus.api.respond import GenerationResponse, WireFormat
from chorus.api.served import Served
from chorus.api.server.gate import Record, record_of
from chorus.api.service import Service
from chorus.api.sharing import shared
from chorus.config.front_end import ApiSettings
from chorus.config.sampling import DefaultSampling
from chorus.config.sections import Limits
from chorus.serving.generation import Generation
from chorus.serving.prompt.conversation import thinking_arguments
from chorus.serving.requests import measure
from chorus.serving.requests.request import FieldNames, GenerationRequest
from chorus.serving.requests.sampling import choose_sampling
from chorus.serving.requests.tools import checked_tools


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/chat/completions", **UNVERSIONED)
    @routes.post("/v1/chat/completions", **operation(ChatRequest, ChatCompletion, streams=True))
    async def chat_completions(request: Request) -> Response:
        body = await read_request(request, ChatRequest, service)
        model = service.find(body.asked_model)
        asked = generation_request(body, record_of(request.scope), service.settings, model.settings.sampling)
        asked = shared(asked, body, request.headers, service.settings)

        async def wire(served: Served, generation: Generation) -> WireFormat:
            return ChatFormat(
                id=f"chatcmpl-{uuid.uuid4().hex}",
                created=int(time.time()),
                model=served.settings.id,
                fingerprint=served.fingerprint,
                tokenizer=served.tokenizer,
                prompts=generation.prompts,
                choices=len(generation),
                include_usage=body.wants_usage,
                with_logprobs=body.asked_logprobs is not None,
                with_token_ids=bool(body.return_token_ids),
            )

        return GenerationResponse(
            service, model, asked, wire, stream=bool(body.stream), failure=broken_off, keep_alive=body.keep_alive
        )

    return routes


def generation_request(
    body: ChatRequest, record: Record, settings: ApiSettings, sampling: DefaultSampling
) -> GenerationRequest:
    limits = settings.limits
    grammar, grammar_field = body.asked_grammar(limits)
    measure.template_arguments(body.chat_template_kwargs or {}, limits)
    thinking = thinking_arguments(body.asked_effort, body.asked_thinking)
    return GenerationRequest(
        messages=template_messages(body.messages, limits),
        tools=checked_tools(
            [tool.as_tool() for tool in body.tools or ()], body.asked_choice, body.parallel_tool_calls, limits
        ),
        template_arguments={**thinking, **(body.chat_template_kwargs or {})},
        role_mapping=body.asked_mapping,
        sampling=choose_sampling(body, sampling),
        max_tokens=body.asked_tokens,
        stops=body.stop_strings,
        choices_per_prompt=body.n or 1,
        logprobs=body.asked_logprobs,
        grammar=grammar,
        fields=FieldNames(grammar=grammar_field),
        id=record.request_id,
        owner=record.owner,
    )


def template_messages(messages: Sequence[Message], limits: Limits) -> list[dict[str, Any]]:
    measure.count("messages", len(messages), limits.max_messages, "messages")
    return [
        template_message(message, f"messages[{place}]", limits.max_nesting) for place, message in enumerate(messages)
    ]


def template_message(message: Message, field: str, deepest: int) -> dict[str, Any]:
    # The union's last member only exists to refuse unknown roles, so every message here has a text.
    entry: dict[str, Any] = {"role": message.role, "content": getattr(message, "text", "")}
    if isinstance(message, AssistantMessage):
        if message.thoughts:
            entry["reasoning_content"] = message.thoughts
        if message.tool_calls:
            entry["tool_calls"] = [
                _call(call, f"{field}.tool_calls[{place}]", deepest) for place, call in enumerate(message.tool_calls)
            ]
    if isinstance(message, ToolMessage):
        entry["tool_call_id"] = message.tool_call_id
    if name := getattr(message, "name", None):
        entry["name"] = name
    return entry


def _call(call: ToolCall, field: str, deepest: int) -> dict[str, Any]:
    arguments = measure.arguments(f"{field}.function.arguments", call.function.arguments, deepest)
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
