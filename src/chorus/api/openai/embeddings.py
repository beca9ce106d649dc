"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Discriminator, Tag

from chorus.api.answers import ResponseModel
from chorus.api.body import read_request
from chorus.api.errors import ApiError, invalid
from chorus.api.fields import KeepAlive, Name, PositiveCount, RequestBody
from chorus.api.openai.completions.request import PromptField, split_prompts
from chorus.api.openapi import operation
from chorus.api.respond import written
from chorus.api.served import Served
from chorus.api.server.gate import record_of
from chorus.api.server.lifetime import Interrupted
from chorus.api.service import Service
from chorus.api.tracing import traced
from chorus.serving.errors import EngineLost
from chorus.serving.models.embedding import Embedding, NoEmbeddings, embedding_of, finish
from chorus.serving.prepare import text_tokens


class EmbeddingsRequest(RequestBody):
    input: PromptField
    model: Name | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: PositiveCount | None = None
    user: Name | None = None
    keep_alive: KeepAlive | None = None


class EmbeddingEntry(ResponseModel):
    object: Literal["embedding"]
    index: int
    embedding: Annotated[
        Annotated[list[float], Tag("<list>")] | Annotated[str, Tag("<string>")],
        Discriminator(lambda value: "<list>" if isinstance(value, list) else "<string>"),
    ]


class EmbeddingsUsage(ResponseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(ResponseModel):
    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: EmbeddingsUsage


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/embeddings", **operation(EmbeddingsRequest, EmbeddingsAnswer))
    async def embeddings(request: Request) -> Response:
        record = record_of(request.scope)
        body = await read_request(request, EmbeddingsRequest, service)
        model = service.find(body.asked_model)
        settings, limits = model.settings, service.settings.limits
        try:
            embedding = embedding_of(settings.path, settings.embeddings, settings.pooling)
        except NoEmbeddings as error:
            message = f"{settings.id} gives no embeddings: {error}."
            raise ApiError(400, message, param="model", code="embeddings_not_supported") from None
        inputs = split_prompts(body.input)
        if len(inputs) > limits.max_inputs:
            raise invalid(f"input: at most {limits.max_inputs} texts are accepted.", "input")
        patience, timeout = service.settings.load_patience_seconds, limits.request_timeout_seconds
        with traced(service.traces, request.scope, settings, "embeddings", {}) as trace:
            try:
                async with service.lifetimes.begin(request.receive):
                    vectors: list[list[float]] = []
                    while not vectors:
                        async with model.used(patience, body.keep_alive) as served:
                            prompts = await _prompts(inputs, served)
                            try:
                                vectors = [
                                    await _embed(served, prompt, embedding, body.dimensions, timeout)
                                    for prompt in prompts
                                ]
                            except EngineLost:
                                # One that was unloaded meanwhile is waited for again.
                                if model.keeps(served):
                                    raise
            except Interrupted as interruption:
                raise interruption.as_error() from None
            record.log_fields["prompt_tokens"] = total = sum(len(prompt) for prompt in prompts)
            served.client.counts.embedded([len(prompt) for prompt in prompts], record.elapsed())
            if trace:
                trace.read(total)
        encode = packed if body.encoding_format == "base64" else list
        data = [
            {"object": "embedding", "index": index, "embedding": encode(vector)} for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": total, "total_tokens": total}
        answer = {"object": "list", "data": data, "model": settings.id, "usage": usage}
        return Response(written(answer), media_type="application/json")

    return routes


def packed(vector: list[float]) -> str:
    """Little-endian 32-bit floats, which OpenAI's clients ask for unasked: a third of the bytes."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


async def _prompts(inputs: Sequence[str | list[int]], served: Served) -> list[tuple[int, ...]]:
    capacity = await served.capacity()
    context = capacity.context_length
    prompts = []
    for place, text in enumerate(inputs):
        prompt = await text_tokens(text, "input", served.model, capacity)
        if len(prompt) > context:
            message = f"input: text {place} has {len(prompt)} tokens, the model's context holds {context}."
            raise invalid(message, "input", "context_length_exceeded")
        prompts.append(prompt)
    return prompts


async def _embed(
    served: Served, prompt: tuple[int, ...], embedding: Embedding, dimensions: int | None, timeout: float
) -> list[float]:
    values = await served.client.embed(prompt, embedding.pooling, timeout)
    if dimensions is not None and dimensions > len(values):
        raise invalid(f"dimensions: the model has {len(values)}, fewer than are asked for.", "dimensions")
    return finish(values, embedding, dimensions)
