"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from chorus.api.body import read_request
from chorus.api.openai.choices import broken_off
from chorus.api.openai.completions.answer import Completion
from chorus.api.openai.completions.request import CompletionRequest
from chorus.api.openai.completions.wire import CompletionFormat
from chorus.api.openapi import UNVERSIONED, operation
from chorus.api.respond import GenerationResponse, WireFormat
from chorus.api.served import Served
from chorus.api.server.gate import Record, record_of
from chorus.api.service import Service
from chorus.api.sharing import shared
from chorus.config.front_end import ApiSettings
from chorus.config.sampling import DefaultSampling
from chorus.serving.generation import Generation
from chorus.serving.requests.request import FieldNames, GenerationRequest
from chorus.serving.requests.sampling import choose_sampling


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/completions", **UNVERSIONED)
    @routes.post("/v1/completions", **operation(CompletionRequest, Completion, streams=True))
    async def completions(request: Request) -> Response:
        body = await read_request(request, CompletionRequest, service)
        model = service.find(body.asked_model)
        asked = generation_request(body, record_of(request.scope), service.settings, model.settings.sampling)
        asked = shared(asked, body, request.headers, service.settings)

        async def wire(served: Served, generation: Generation) -> WireFormat:
            return CompletionFormat(
                id=f"cmpl-{uuid.uuid4().hex}",
                created=int(time.time()),
                model=served.settings.id,
                fingerprint=served.fingerprint,
                tokenizer=served.tokenizer,
                prompts=generation.prompts,
                choices=len(generation),
                include_usage=body.wants_usage,
                with_logprobs=body.asked_logprobs is not None,
                with_token_ids=bool(body.return_token_ids),
                echoed=tuple([await echo(prompt, served) for prompt in body.prompts]) if body.echo else (),
            )

        return GenerationResponse(
            service, model, asked, wire, stream=bool(body.stream), failure=broken_off, keep_alive=body.keep_alive
        )

    return routes


def generation_request(
    body: CompletionRequest, record: Record, settings: ApiSettings, sampling: DefaultSampling
) -> GenerationRequest:
    grammar, _ = body.asked_grammar(settings.limits)
    return GenerationRequest(
        prompts=as_prompts(body.prompts),
        sampling=choose_sampling(body, sampling),
        seeded=body.seed is not None,
        max_tokens=body.asked_tokens,
        stops=body.stop_strings,
        choices_per_prompt=body.n or 1,
        logprobs=body.asked_logprobs,
        grammar=grammar,
        fields=FieldNames(prompt="prompt"),
        id=record.request_id,
        owner=record.owner,
    )


def as_prompts(prompts: Sequence[str | list[int]]) -> tuple[str | tuple[int, ...], ...]:
    return tuple(prompt if isinstance(prompt, str) else tuple(prompt) for prompt in prompts)


async def echo(prompt: str | list[int], served: Served) -> str:
    if isinstance(prompt, str):
        return prompt
    return await served.model.workers.run(len(prompt), lambda: served.tokenizer.decode(prompt, skip_special=False))
