"""Every error leaves in the shape of the protocol it was met in: OpenAI's, or Anthropic's under /v1/messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from chorus.errors import ChorusError
from chorus.messages.deploy import ModelState
from chorus.serving.errors import (
    ContextExceeded,
    EngineError,
    EngineLost,
    EngineOverloaded,
    ModelFailed,
    ModelNotReady,
    OwnerAway,
    OwnerRefused,
    RequestRejected,
    UnknownModel,
    heard,
)
from chorus.serving.requests.measure import BadField
from chorus.serving.workers import Busy

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 2


class ApiError(ChorusError):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        extra: Mapping[str, Any] | None = None,
        anthropic_message: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self._anthropic_message = anthropic_message or message
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        self._error = {"message": message, "type": type, "param": param, "code": code}
        self._extra = dict(extra or {})

    @property
    def kind(self) -> str:
        """In one word, for programs."""
        return str(self._error["code"] or self._error["type"])

    def body(self) -> dict[str, Any]:
        return {"error": self._error, **self._extra}

    def anthropic_body(self, request_id: str | None = None) -> dict[str, Any]:
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        body = {"type": "error", "error": {"type": kind, "message": self._anthropic_message}}
        return body if request_id is None else {**body, "request_id": request_id}

    def response(self, path: str, request_id: str | None = None) -> JSONResponse:
        body = self.anthropic_body(request_id) if speaks_anthropic(path) else self.body()
        return JSONResponse(body, status_code=self.status, headers=self.headers)


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def speaks_anthropic(path: str) -> bool:
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def invalid(message: str, param: str | None, code: str | None = "invalid_value") -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str, extra: Mapping[str, Any] | None = None) -> ApiError:
    return ApiError(503, message, type="service_unavailable", code=code, retry_after=RETRY_AFTER_SECONDS, extra=extra)


def from_engine(error: EngineError) -> ApiError:
    message = sentence(str(error))
    if isinstance(error, EngineOverloaded):
        return ApiError(
            429, message, type="rate_limit_error", code="engine_overloaded", retry_after=RETRY_AFTER_SECONDS
        )
    if isinstance(error, RequestRejected) and error.field:
        return invalid(f"{error.field}: it cannot be used: {error}.", error.field, "invalid_grammar")
    if isinstance(error, RequestRejected):
        return ApiError(400, message, code="request_rejected")
    if isinstance(error, EngineLost):
        return unavailable(message, "engine_lost")
    return ApiError(500, message, type="server_error", code="engine_failed")


def from_context(error: ContextExceeded) -> ApiError:
    """Anthropic's clients know it by these words alone, and read both numbers to shorten what they send."""
    words = f"prompt is too long: {error.prompt_tokens} tokens > {error.context_length} maximum"
    return ApiError(400, str(error), param=error.field, code="context_length_exceeded", anthropic_message=words)


def from_serving(error: Exception, models: tuple[str, ...] | None = None) -> ApiError:
    """What the parts that all front ends share have refused, or failed at, as a key for these models is told (None:
    all).
    """
    match error:
        case ModelNotReady(row=row, patience=patience) if heard(row, models) != row:
            return from_serving(ModelNotReady(heard(row, models), patience))
        case ModelFailed(model_id=model_id, reason=reason) if models is not None and reason:
            return from_serving(ModelFailed(model_id, ""))
        case BadField():
            return invalid(f"{error}.", error.field, error.code)
        case Busy():
            return unavailable(sentence(str(error)), "too_busy")
        case ContextExceeded():
            return from_context(error)
        case EngineError():
            return from_engine(error)
        case UnknownModel():
            words = f"{error} GET /v1/models lists all that are."
            return ApiError(404, words, param="model", code="model_not_found")
        case ModelNotReady(row=row):
            progress = {"state": row.state.name.lower(), "progress": row.progress, "detail": row.detail}
            return unavailable(sentence(str(error)), "engine_not_ready", progress)
        case ModelFailed(reason=reason):
            progress = {"state": ModelState.FAILED.name.lower(), "progress": 0.0, "detail": reason}
            return unavailable(sentence(str(error)), "model_failed", progress)
        case OwnerAway():
            return unavailable(sentence(str(error)), "owner_away")
        case OwnerRefused():
            return ApiError(409, sentence(str(error)), code="refused_by_owner")
        case _:
            return internal()


SERVING_ERRORS = (
    BadField,
    Busy,
    ContextExceeded,
    EngineError,
    UnknownModel,
    ModelNotReady,
    ModelFailed,
    OwnerAway,
    OwnerRefused,
)
"""Those that `from_serving` has words for."""


def from_validation(error: ValidationError) -> ApiError:
    """Names one field: a client mends one at a time, and the first is as good as any."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = field_path(first["loc"])
    match first["type"]:
        case "json_invalid":
            reason = first["msg"].removeprefix("Invalid JSON: ")
            if reason.startswith("recursion limit"):
                return invalid("The body is nested deeper than 200 levels.", None, "limit_exceeded")
            return invalid(f"The body is not valid JSON: {reason}.", None, "invalid_json")
        case "extra_forbidden":
            return invalid(f"Unknown field: {path}.", path, "unknown_parameter")
        case "missing":
            return invalid(f"Missing field: {path}.", path, "missing_required_parameter")
        case "unsupported":
            return invalid(f"{path}: {first['msg']}.", path, "unsupported_parameter")
        case kind:
            wrong_type = kind.endswith("_type") or kind == "model_attributes_type"
            name = path or "the body"
            return invalid(f"{name}: {first['msg']}.", path, "invalid_type" if wrong_type else "invalid_value")


def field_path(location: tuple[int | str, ...]) -> str | None:
    """messages[0].content[1]; the tags of unions, written <so>, are no part of what the client sent."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<") and part != "[key]":
            path += f".{part}" if path else part
    return path or None


def install(app: FastAPI, models_of: Callable[[Scope], tuple[str, ...] | None]) -> None:
    """`models_of` says for which models a request's key is (None: all)."""

    async def api_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error.response(request.url.path)

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        response = _plain_http(request.method, request.url.path, error).response(request.url.path)
        response.headers.update(error.headers or {})
        return response

    async def serving_error(request: Request, error: Exception) -> JSONResponse:
        return from_serving(error, models_of(request.scope)).response(request.url.path)

    app.add_exception_handler(ApiError, api_error)
    for kind in SERVING_ERRORS:
        app.add_exception_handler(kind, serving_error)
    app.add_exception_handler(HTTPException, http_error)


def internal() -> ApiError:
    return ApiError(
        500, "The server failed on this request; its log has the reason under this request id.", type="server_error"
    )


def _plain_http(method: str, path: str, error: HTTPException) -> ApiError:
    match error.status_code:
        case 404:
            return ApiError(404, f"There is nothing at {method} {path}.", code="unknown_path")
        case 405:
            return ApiError(405, f"{path} does not take {method}.", code="method_not_allowed")
        case status:
            return ApiError(status, str(error.detail))


def sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
