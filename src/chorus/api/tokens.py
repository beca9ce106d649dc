"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, model_validator

from chorus.api.answers import Described
from chorus.api.body import read_request
from chorus.api.chat.request import FunctionTool, Message
from chorus.api.chat.routes import template_message
from chorus.api.conversation import Conversation, prompt_of
from chorus.api.describe import operation
from chorus.api.errors import invalid
from chorus.api.service import Service, outside_vocabulary
from chorus.api.strict import RequestBody, TokenId, refused
from chorus.api.tools import toolbox
from chorus.api.wish import Prompt


class TokenizeRequest(RequestBody):
    """A text, or messages as a chat would send them."""

    model: str | None = None
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
    model: str | None = None
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
        answer = {
            "count": len(tokens),
            "max_model_len": service.context_length(description),
            "tokens": tokens,
            "token_strs": [service.tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None,
        }
        return JSONResponse(answer)

    @routes.post("/detokenize", **operation(DetokenizeRequest, DetokenizeAnswer))
    async def detokenize(request: Request) -> Response:
        body = await read_request(request, DetokenizeRequest, service.settings.limits)
        service.check_model(body.model)
        vocabulary = service.tokenizer.vocabulary
        for token in body.tokens:
            if token >= vocabulary:
                raise outside_vocabulary(token, vocabulary, "tokens")
        return JSONResponse({"prompt": service.tokenizer.decode(body.tokens, skip_special=False)})

    return routes


def _prompt(body: TokenizeRequest, service: Service) -> Prompt:
    if body.messages is None:
        text, special = body.prompt or "", body.add_special_tokens is not False
        if not text:
            raise invalid("prompt: there is no text in it.", "prompt")
        return Prompt(lambda: service.tokenizer.encode(text, special=special), len(text))
    conversation = Conversation(
        messages=[template_message(message) for message in body.messages],
        toolbox=toolbox([tool.as_tool() for tool in body.tools or ()], None, None, service.settings.limits.max_tools),
        template_arguments=body.chat_template_kwargs or {},
        continue_last=bool(body.continue_final_message),
    )
    return prompt_of(conversation, service)
