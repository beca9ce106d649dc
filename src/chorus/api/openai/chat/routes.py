"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from chorus.api.body import read_request
from chorus.api.describe import operation
from chorus.api.openai.chat.answer import ChatCompletion
from chorus.api.openai.chat.request import AssistantMessage, ChatRequest, Message, ToolCall, ToolMessage
from chorus.api.openai.chat.wire import ChatFormat
from chorus.api.respond import GenerationResponse
from chorus.api.server.access import record_of
from chorus.api.service import Service
from chorus.api.wish import Wish
from chorus.config.sections import Limits
from chorus.serving import measure
from chorus.serving.prompt.conversation import Conversation, answer_grammar, prompt_of, reading_of, thinking_arguments
from chorus.serving.prompt.tools import toolbox
from chorus.serving.prompt.voice import call_id


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", **operation(ChatRequest, ChatCompletion, streams=True))
    async def chat_completions(request: Request) -> Response:
        record = record_of(request.scope)
        body = await read_request(request, ChatRequest, service.settings.limits)
        prepared = await service.prepare(await chat_wish(body, service), record.request_id, record.owner)
        record.figures["prompt_tokens"] = len(prepared.prompts[0])
        wire = ChatFormat(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=service.settings.model_id,
            fingerprint=prepared.fingerprint,
            tokenizer=service.tokenizer,
            prompts=prepared.prompts,
            choices=len(prepared.choices),
            include_usage=body.wants_usage,
            with_logprobs=bool(body.logprobs),
            with_token_ids=bool(body.return_token_ids),
        )
        return GenerationResponse(service, prepared, wire, stream=bool(body.stream))

    return routes


async def chat_wish(body: ChatRequest, service: Service) -> Wish:
    service.check_model(body.model)
    limits = service.settings.limits
    tools = [tool.as_tool() for tool in body.tools or ()]
    grammar, field = body.asked_grammar(limits)
    measure.template_arguments(body.chat_template_kwargs or {}, limits)
    conversation = Conversation(
        messages=template_messages(body.messages, limits),
        toolbox=toolbox(tools, body.asked_choice, body.parallel_tool_calls, limits),
        grammar=grammar,
        template_arguments={
            **thinking_arguments(body.asked_effort, body.asked_thinking),
            **(body.chat_template_kwargs or {}),
        },
        role_mapping=body.role_mapping.model_dump() if body.role_mapping else None,
    )
    return Wish(
        prompts=(prompt_of(conversation, service),),
        sampling=body.sampling_wish(),
        model=body.model,
        max_tokens=body.asked_tokens,
        stops=body.stop_strings,
        count=body.n or 1,
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        grammar=await answer_grammar(conversation, service, field),
        reading=reading_of(conversation, service, call_id("call_")),
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
        if message.reasoning_content:
            entry["reasoning_content"] = message.reasoning_content
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
