"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, model_validator

from chorus.api.answers import Described
from chorus.api.body import read_request
from chorus.api.describe import operation
from chorus.api.errors import invalid
from chorus.api.openai.chat.request import FunctionTool, Message
from chorus.api.openai.chat.routes import template_messages
from chorus.api.service import Service, outside_vocabulary
from chorus.api.strict import Name, RequestBody, TokenId, refused
from chorus.api.wish import Prompt
from chorus.serving import measure
from chorus.serving.prompt.conversation import Conversation, prompt_of
from chorus.serving.prompt.tools import toolbox


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


class TokenizeAnswer(Described):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestBody):
    model: Name | None = None
    tokens: list[TokenId]


class DetokenizeAnswer(Described):
    prompt: str


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/tokenize", **operation(TokenizeRequest, TokenizeAnswer))
    async def tokenize(request: Request) -> Response:
        body = await read_request(request, TokenizeRequest, service.settings.limits)
        service.check_model(body.model)
        description = await service.ready()
        field = "prompt" if body.messages is None else "messages"
        tokens = await service.prompt_tokens(_prompt(body, service), field, description)

        def answer() -> bytes:
            texts = [service.tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None
            longest = service.context_length(description)
            return orjson.dumps({"count": len(tokens), "max_model_len": longest, "tokens": tokens, "token_strs": texts})

        return Response(await service.workers.run(len(tokens), answer), media_type="application/json")

    @routes.post("/detokenize", **operation(DetokenizeRequest, DetokenizeAnswer))
    async def detokenize(request: Request) -> Response:
        body = await read_request(request, DetokenizeRequest, service.settings.limits)
        service.check_model(body.model)
        tokenizer, tokens = service.tokenizer, body.tokens
        measure.count("tokens", len(tokens), service.settings.limits.max_detokenize_tokens, "tokens")
        if (largest := max(tokens, default=0)) >= tokenizer.vocabulary:
            raise outside_vocabulary(largest, tokenizer.vocabulary, "tokens")
        text = await service.workers.run(len(tokens), lambda: tokenizer.decode(tokens, skip_special=False))
        return JSONResponse({"prompt": text})

    return routes


def _prompt(body: TokenizeRequest, service: Service) -> Prompt:
    if body.messages is None:
        text, special = body.prompt or "", body.add_special_tokens is not False
        if not text:
            raise invalid("prompt: there is no text in it.", "prompt")
        return Prompt(lambda: service.tokenizer.encode(text, special=special), len(text))
    limits = service.settings.limits
    measure.template_arguments(body.chat_template_kwargs or {}, limits)
    conversation = Conversation(
        messages=template_messages(body.messages, limits),
        toolbox=toolbox([tool.as_tool() for tool in body.tools or ()], None, None, limits),
        template_arguments=body.chat_template_kwargs or {},
        continue_last=bool(body.continue_final_message),
    )
    return prompt_of(conversation, service)
