"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from chorus.api.anthropic.answer import AnthropicMessage, TokenCount
from chorus.api.anthropic.history import messages_of
from chorus.api.anthropic.request import CountRequest, MessagesRequest, OutputConfig, Thinking
from chorus.api.anthropic.wire import MessageFormat
from chorus.api.body import read_request
from chorus.api.describe import operation
from chorus.api.respond import GenerationResponse
from chorus.api.server.access import record_of
from chorus.api.service import Service
from chorus.api.wish import FieldNames, SamplingWish, Wish
from chorus.serving.prompt.conversation import Conversation, answer_grammar, prompt_of, reading_of
from chorus.serving.prompt.tools import toolbox
from chorus.serving.prompt.voice import call_id


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    limits = service.settings.limits

    @routes.post("/v1/messages", **operation(MessagesRequest, AnthropicMessage, streams=True, anthropic=True))
    async def create_message(request: Request) -> Response:
        record = record_of(request.scope)
        body = await read_request(request, MessagesRequest, limits)
        prepared = await service.prepare(await wish_of(body, service), record.request_id, record.owner)
        record.figures["prompt_tokens"] = prompt_tokens = len(prepared.prompts[0])
        wire = MessageFormat(f"msg_{uuid.uuid4().hex}", service.settings.model_id, prompt_tokens)
        return GenerationResponse(service, prepared, wire, stream=bool(body.stream))

    @routes.post("/v1/messages/count_tokens", **operation(CountRequest, TokenCount, anthropic=True))
    async def count_tokens(request: Request) -> Response:
        body = await read_request(request, CountRequest, limits)
        service.check_model(body.model)
        prompt = prompt_of(conversation_of(body, service), service)
        tokens = await service.prompt_tokens(prompt, "messages", await service.ready())
        return JSONResponse({"input_tokens": len(tokens)})

    return routes


def conversation_of(body: CountRequest, service: Service) -> Conversation:
    limits = service.settings.limits
    return Conversation(
        messages=messages_of(body, limits),
        toolbox=toolbox(body.offered_tools(), body.asked_choice, body.parallel, limits),
        grammar=body.asked_grammar(limits),
        template_arguments=template_arguments(body.thinking, body.output_config),
        # An answer that the client has begun is to be continued, not answered.
        continue_last=body.messages[-1].role == "assistant",
    )


async def wish_of(body: MessagesRequest, service: Service) -> Wish:
    service.check_model(body.model)
    conversation = conversation_of(body, service)
    return Wish(
        prompts=(prompt_of(conversation, service),),
        sampling=SamplingWish(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k),
        model=body.model,
        max_tokens=body.max_tokens,
        cut_to_fit=True,
        stops=tuple(body.stop_sequences or ()),
        grammar=await answer_grammar(conversation, service, "output_config.format"),
        reading=reading_of(conversation, service, call_id("toolu_")),
        fields=FieldNames(stop="stop_sequences"),
    )


def template_arguments(thinking: Thinking | None, output: OutputConfig | None) -> dict[str, Any]:
    """Where the client says nothing, the model does what its template has it do."""
    arguments: dict[str, Any] = {}
    if thinking:
        arguments["enable_thinking"] = thinking.type != "disabled"
        if thinking.budget_tokens:
            arguments["thinking_budget"] = thinking.budget_tokens
    if output and output.effort:
        arguments["reasoning_effort"] = output.effort
    return arguments
