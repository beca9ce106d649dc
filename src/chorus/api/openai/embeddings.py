"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Discriminator, Tag

from chorus.api.answers import ResponseModel
from chorus.api.body import read_request
from chorus.api.errors import ApiError, invalid
from chorus.api.fields import Name, PositiveCount, RequestBody
from chorus.api.openai.completions.request import PromptField, split_prompts
from chorus.api.openapi import operation
from chorus.api.respond import written
from chorus.api.served import Served
from chorus.api.server.gate import record_of
from chorus.api.server.lifetime import Interrupted
from chorus.api.service import Service
from chorus.serving.embedding import Embedding, NoEmbeddings, embedding_of, finish
from chorus.serving.prepare import text_tokens


class EmbeddingsRequest(RequestBody):
    input: PromptField
    model: Name | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: PositiveCount | None = None
    user: Name | None = None


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
        served = service.find(body.asked_model)
        settings = served.settings
        try:
            embedding = embedding_of(settings.path, settings.embeddings, settings.pooling)
        except NoEmbeddings as error:
            message = f"{settings.id} gives no embeddings: {error}."
            raise ApiError(400, message, param="model", code="embeddings_not_supported") from None
        prompts = await _prompts(body, service.settings.limits.max_inputs, served)
        timeout = service.settings.limits.request_timeout_seconds
        try:
            async with service.lifetimes.begin(request.receive):
                vectors = [await _embed(served, prompt, embedding, body.dimensions, timeout) for prompt in prompts]
        except Interrupted as interruption:
            raise interruption.as_error() from None
        record.log_fields["prompt_tokens"] = total = sum(len(prompt) for prompt in prompts)
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


async def _prompts(body: EmbeddingsRequest, limit: int, served: Served) -> list[tuple[int, ...]]:
    inputs = split_prompts(body.input)
    if len(inputs) > limit:
        raise invalid(f"input: at most {limit} texts are accepted.", "input")
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
