"""POST /tokenize and /detokenize, as vLLM has them. They need the tokenizer alone: no model is loaded for them."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, model_validator

from chorus.api.answers import ResponseModel
from chorus.api.body import read_request
from chorus.api.errors import invalid
from chorus.api.fields import Name, RequestBody, refused
from chorus.api.openai.chat.request import FunctionTool, Message
from chorus.api.openai.chat.routes import template_messages
from chorus.api.openapi import operation
from chorus.api.served import ANY_LENGTH, Served, text_capacity
from chorus.api.service import Service
from chorus.config.sampling import TokenId
from chorus.config.sections import Limits
from chorus.serving.models.model import Capacity
from chorus.serving.prepare import check_token, conversation_prompt, text_tokens
from chorus.serving.requests import measure
from chorus.serving.requests.request import GenerationRequest
from chorus.serving.requests.tools import checked_tools


class TokenizeRequest(RequestBody):
    """A text, or messages as a chat would send them."""

    model: Name | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    tools: list[FunctionTool] | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_or_the_other(self) -> TokenizeRequest:
        if self.prompt is None and self.messages is None:
            raise refused("missing", "prompt", "give a prompt or messages")
        if self.prompt is not None and self.messages is not None:
            raise refused("refused", "messages", "cannot be combined with prompt")
        only_for_messages = ("tools", "continue_final_message", "chat_template_kwargs")
        for name in only_for_messages if self.messages is None else ("add_special_tokens",):
            if getattr(self, name) is not None:
                raise refused("refused", name, "has no meaning here")
        return self


class TokenizeAnswer(ResponseModel):
    count: int
    max_model_len: int | None
    """None where the model was never loaded, and its files do not tell."""
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestBody):
    model: Name | None = None
    tokens: list[TokenId]


class DetokenizeAnswer(ResponseModel):
    prompt: str


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/tokenize", **operation(TokenizeRequest, TokenizeAnswer))
    async def tokenize(request: Request) -> Response:
        body = await read_request(request, TokenizeRequest, service)
        model = service.find(body.asked_model)
        async with model.held() as served:
            capacity = await text_capacity(model, served)
            tokens = await _tokens(body, service.settings.limits, served, capacity)

            def answer() -> bytes:
                texts = [served.tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None
                longest = capacity.context_length if capacity.context_length < ANY_LENGTH else None
                return orjson.dumps(
                    {"count": len(tokens), "max_model_len": longest, "tokens": tokens, "token_strs": texts}
                )

            return Response(await served.model.workers.run(len(tokens), answer), media_type="application/json")

    @routes.post("/detokenize", **operation(DetokenizeRequest, DetokenizeAnswer))
    async def detokenize(request: Request) -> Response:
        body = await read_request(request, DetokenizeRequest, service)
        tokens = body.tokens
        measure.count("tokens", len(tokens), service.settings.limits.max_detokenize_tokens, "tokens")
        async with service.find(body.asked_model).held() as served:
            tokenizer = served.tokenizer
            check_token(max(tokens, default=0), tokenizer.vocabulary, "tokens")
            text = await served.model.workers.run(len(tokens), lambda: tokenizer.decode(tokens, skip_special=False))
        return JSONResponse({"prompt": text})

    return routes


async def _tokens(body: TokenizeRequest, limits: Limits, served: Served, capacity: Capacity) -> tuple[int, ...]:
    if body.messages is None:
        if not body.prompt:
            raise invalid("prompt: there is no text in it.", "prompt")
        special = body.add_special_tokens is not False
        return await text_tokens(body.prompt, "prompt", served.model, capacity, special=special)
    measure.template_arguments(body.chat_template_kwargs or {}, limits)
    asked = GenerationRequest(
        messages=template_messages(body.messages, limits),
        tools=checked_tools([tool.as_tool() for tool in body.tools or ()], None, None, limits),
        template_arguments=body.chat_template_kwargs or {},
        continue_last=bool(body.continue_final_message),
    )
    return (await conversation_prompt(asked, served.model, capacity)).tokens
