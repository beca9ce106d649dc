"""POST /v1/responses, and what was stored of earlier ones."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from chorus.api.body import read_request
from chorus.api.errors import ApiError, unavailable
from chorus.api.openai.responses.answer import DeletedResponse, ResponseObject
from chorus.api.openai.responses.history import answered, messages_of
from chorus.api.openai.responses.memory import StoredResponse
from chorus.api.openai.responses.request import ResponsesRequest
from chorus.api.openai.responses.store import CannotForget, ResponseStore
from chorus.api.openai.responses.wire import ResponsesFormat, broken_off
from chorus.api.openapi import operation
from chorus.api.respond import GenerationResponse, WireFormat
from chorus.api.served import Served
from chorus.api.server.gate import Record, record_of
from chorus.api.service import Service
from chorus.api.sharing import shared
from chorus.config.front_end import ApiSettings
from chorus.config.sampling import DefaultSampling
from chorus.messages.engine import Sampling
from chorus.serving.blocks import Block
from chorus.serving.generation import Generation
from chorus.serving.prompt.conversation import thinking_arguments
from chorus.serving.requests import measure
from chorus.serving.requests.request import FieldNames, GenerationRequest, Message
from chorus.serving.requests.sampling import choose_sampling
from chorus.serving.requests.tools import checked_tools


def router(service: Service) -> APIRouter:
    limits = service.settings.limits
    store = ResponseStore(service.settings.responses_file, limits.max_stored_responses, limits.max_stored_bytes)

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[None]:
        store.open()
        yield
        await store.close()

    routes = APIRouter(lifespan=opened)

    async def stored(request: Request, response_id: str, field: str | None) -> StoredResponse:
        entry = await store.get(record_of(request.scope).owner, response_id)
        if entry is None:
            raise not_stored(response_id, field)
        return entry

    @routes.post("/v1/responses", **operation(ResponsesRequest, ResponseObject, streams=True))
    async def create_response(request: Request) -> Response:
        record = record_of(request.scope)
        body = await read_request(request, ResponsesRequest, service)
        model = service.find(body.asked_model)
        earlier = body.previous_response_id
        before = () if earlier is None else (await stored(request, earlier, "previous_response_id")).messages
        messages = messages_of(body.input, limits, before)
        asked = generation_request(body, messages, record, service.settings, model.settings.sampling)
        asked = shared(asked, body, request.headers, service.settings)
        final: list[tuple[dict[str, Any], Sequence[Block]]] = []

        async def keep() -> None:
            """Before the client hears that it is complete: from then on it may be continued, at any front end."""
            if body.store is not False:
                ((answer, blocks),) = final
                await store.put(record.owner, answer, answered(messages, blocks, limits.max_nesting))

        async def wire(served: Served, _: Generation) -> WireFormat:
            return ResponsesFormat(
                id=f"resp_{uuid.uuid4().hex}",
                echoed=echoed(body, asked.sampling, served.settings.id),
                tokenizer=served.tokenizer,
                with_logprobs=body.wants_logprobs,
                finished=lambda answer, blocks: final.append((answer, blocks)),
            )

        return GenerationResponse(
            service, model, asked, wire, stream=bool(body.stream), failure=broken_off, before_end=keep
        )

    # Without this the path would be taken for an id, and the answer would be that it cannot be posted to.
    @routes.post("/v1/responses/compact", include_in_schema=False)
    async def compact() -> Response:
        raise ApiError(404, "Compaction is not offered here.", code="unknown_path")

    @routes.get("/v1/responses/{response_id}", **operation(None, ResponseObject))
    async def retrieve_response(response_id: str, request: Request) -> Response:
        return Response((await stored(request, response_id, None)).body, media_type="application/json")

    @routes.delete("/v1/responses/{response_id}", **operation(None, DeletedResponse))
    async def delete_response(response_id: str, request: Request) -> Response:
        try:
            if not await store.remove(record_of(request.scope).owner, response_id):
                raise not_stored(response_id, None)
        except CannotForget as error:
            raise unavailable(f"The response may still be stored: {error}.", "not_deleted") from None
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    return routes


def not_stored(response_id: str, field: str | None) -> ApiError:
    message = f"There is no stored response {response_id[:80]!r}; it may have been dropped for newer ones."
    return ApiError(404 if field is None else 400, message, param=field, code="response_not_found")


def generation_request(
    body: ResponsesRequest,
    messages: Sequence[Message],
    record: Record,
    settings: ApiSettings,
    sampling: DefaultSampling,
) -> GenerationRequest:
    limits = settings.limits
    measure.template_arguments(body.chat_template_kwargs or {}, limits)
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    effort = body.reasoning.effort if body.reasoning else None
    return GenerationRequest(
        messages=[*instructions, *messages],
        tools=checked_tools(body.offered_tools(), body.asked_choice, body.parallel_tool_calls, limits),
        template_arguments={**thinking_arguments(effort), **(body.chat_template_kwargs or {})},
        sampling=choose_sampling(body, sampling),
        max_tokens=body.max_output_tokens,
        logprobs=(body.top_logprobs or 0) if body.wants_logprobs else None,
        grammar=body.asked_grammar(limits),
        fields=FieldNames(prompt="input", grammar="text.format"),
        id=record.request_id,
        owner=record.owner,
    )


def echoed(body: ResponsesRequest, chosen: Sampling, model_id: str) -> dict[str, Any]:
    tools = [tool.model_dump() for tool in body.tools or ()]
    choice = body.tool_choice or "auto"
    form = body.text.format.model_dump(by_alias=True) if body.text and body.text.format else {"type": "text"}
    reasoning = body.reasoning
    return {
        "model": model_id,
        "previous_response_id": body.previous_response_id,
        "instructions": body.instructions,
        "tools": tools,
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": {"format": {name: value for name, value in form.items() if value is not None}},
        "temperature": chosen.temperature,
        "top_p": chosen.top_p,
        "presence_penalty": chosen.presence_penalty,
        "frequency_penalty": chosen.frequency_penalty,
        "top_logprobs": body.top_logprobs or 0,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "store": body.store is not False,
        "background": False,
        "truncation": "disabled",
        "service_tier": "default",
        "metadata": body.metadata or {},
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }
