"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid

from fastapi import APIRouter, Request
from fastapi.responses import Response

from chorus.api.body import read_request
from chorus.api.describe import operation
from chorus.api.openai.completions.answer import Completion
from chorus.api.openai.completions.request import CompletionRequest
from chorus.api.openai.completions.wire import CompletionFormat
from chorus.api.respond import GenerationResponse
from chorus.api.server.access import record_of
from chorus.api.service import Service
from chorus.api.wish import FieldNames, Prompt, Wish


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions", **operation(CompletionRequest, Completion, streams=True))
    async def completions(request: Request) -> Response:
        record = record_of(request.scope)
        body = await read_request(request, CompletionRequest, service.settings.limits)
        prepared = await service.prepare(completion_wish(body, service), record.request_id, record.owner)
        record.figures["prompt_tokens"] = sum(len(prompt) for prompt in prepared.prompts)
        wire = CompletionFormat(
            id=f"cmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=service.settings.model_id,
            fingerprint=prepared.fingerprint,
            tokenizer=service.tokenizer,
            prompts=prepared.prompts,
            choices=len(prepared.choices),
            include_usage=body.wants_usage,
            with_logprobs=body.logprobs is not None,
            with_token_ids=bool(body.return_token_ids),
            echoed=tuple([await echo(prompt, service) for prompt in body.prompts]) if body.echo else (),
        )
        return GenerationResponse(service, prepared, wire, stream=bool(body.stream))

    return routes


def completion_wish(body: CompletionRequest, service: Service) -> Wish:
    grammar, _ = body.asked_grammar(service.settings.limits)
    return Wish(
        prompts=tuple(as_prompt(prompt, service) for prompt in body.prompts),
        sampling=body.sampling_wish(),
        model=body.model,
        max_tokens=body.asked_tokens,
        stops=body.stop_strings,
        count=body.n or 1,
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
        grammar=grammar,
        fields=FieldNames(prompt="prompt"),
    )


def as_prompt(prompt: str | list[int], service: Service) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(lambda: service.tokenizer.encode(prompt), len(prompt))
    return Prompt(lambda: prompt)


async def echo(prompt: str | list[int], service: Service) -> str:
    if isinstance(prompt, str):
        return prompt
    return await service.workers.run(len(prompt), lambda: service.tokenizer.decode(prompt, skip_special=False))
