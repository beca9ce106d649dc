"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from chorus.api.anthropic.answer import AnthropicMessage, TokenCount
from chorus.api.anthropic.history import messages_of
from chorus.api.anthropic.request import CountRequest, MessagesRequest, OutputConfig, Thinking
from chorus.api.anthropic.wire import MessageFormat, broken_off
from chorus.api.body import read_request
from chorus.api.openapi import operation
from chorus.api.respond import GenerationResponse, WireFormat
from chorus.api.served import Served, text_capacity
from chorus.api.server.gate import Record, record_of
from chorus.api.service import Service
from chorus.api.sharing import shared
from chorus.config.front_end import ApiSettings
from chorus.config.sampling import DefaultSampling
from chorus.serving.generation import Generation
from chorus.serving.prepare import conversation_prompt
from chorus.serving.requests.request import FieldNames, GenerationRequest
from chorus.serving.requests.sampling import choose_sampling
from chorus.serving.requests.tools import checked_tools


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    settings = service.settings

    @routes.post("/v1/messages", **operation(MessagesRequest, AnthropicMessage, streams=True, anthropic=True))
    async def create_message(request: Request) -> Response:
        body = await read_request(request, MessagesRequest, service)
        model = service.find(body.asked_model)
        asked = generation_request(body, record_of(request.scope), settings, model.settings.sampling)
        asked = shared(asked, body, request.headers, settings)

        async def wire(served: Served, generation: Generation) -> WireFormat:
            return MessageFormat(f"msg_{uuid.uuid4().hex}", served.settings.id, len(generation.prompts[0]))

        return GenerationResponse(service, model, asked, wire, stream=bool(body.stream), failure=broken_off)

    @routes.post("/v1/messages/count_tokens", **operation(CountRequest, TokenCount, anthropic=True))
    async def count_tokens(request: Request) -> Response:
        body = await read_request(request, CountRequest, service)
        asked = replace(conversation(body, settings), owner=record_of(request.scope).owner)
        asked = shared(asked, body, request.headers, settings)
        model = service.find(body.asked_model)
        async with model.held() as served:
            prompt = await conversation_prompt(asked, served.model, await text_capacity(model, served))
        return JSONResponse({"input_tokens": len(prompt.tokens)})

    return routes


def conversation(body: CountRequest, settings: ApiSettings) -> GenerationRequest:
    """What tokens are counted of."""
    limits, with_rules = settings.limits, settings.client_rules
    tools = body.offered_tools()
    if not with_rules:
        tools = [replace(tool, deferred=False) for tool in tools]
    return GenerationRequest(
        messages=messages_of(body, limits, with_rules=with_rules),
        tools=checked_tools(tools, body.asked_choice, body.parallel, limits),
        grammar=body.asked_grammar(limits),
        template_arguments=template_arguments(body.thinking, body.output_config),
        # An answer that the client has begun is to be continued, not answered.
        continue_last=body.messages[-1].role == "assistant",
        fields=FieldNames(stop="stop_sequences", grammar="output_config.format"),
    )


def generation_request(
    body: MessagesRequest, record: Record, settings: ApiSettings, sampling: DefaultSampling
) -> GenerationRequest:
    return replace(
        conversation(body, settings),
        sampling=choose_sampling(body, sampling),
        max_tokens=body.max_tokens,
        cut_to_fit=True,
        stops=tuple(body.stop_sequences or ()),
        call_id_prefix="toolu_",
        id=record.request_id,
        owner=record.owner,
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
