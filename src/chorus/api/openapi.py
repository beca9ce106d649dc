"""The API's description of itself (OpenAPI). Bodies are read by us, so what they may hold is added here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from chorus.api.answers import AnthropicErrorBody, ErrorBody

_REFS = "#/components/schemas/{model}"
_MARK = "x-chorus-body"
_REQUIRED = "x-chorus-body-required"
# FastAPI takes only plain values along with a route, so the types wait here under their names.
_BODIES: dict[str, type[BaseModel]] = {}
# Of each event in a stream: what its data holds depends on the protocol.
_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_ERRORS = {
    400: "The request cannot be served as it is; the error names the field.",
    401: "An API key is missing or unknown.",
    404: "The model, or what was asked for, is not here.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    429: "Too many requests; Retry-After says when to come back.",
    500: "The server failed on the request.",
    503: "The engine is not ready; Retry-After says when to come back.",
    504: "The request took longer than the server allows.",
}

UNVERSIONED: dict[str, Any] = {"include_in_schema": False, "response_model": None}
"""Of a path without its /v1, which mlx-lm's clients and other habits ask for: the same operation, described once."""


def operation(
    body: type[BaseModel] | None,
    answer: type[BaseModel],
    *,
    streams: bool = False,
    anthropic: bool = False,
    body_required: bool = True,
    more: Mapping[int | str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The arguments of a route decorator; `more` are answers that others do not have."""
    error = AnthropicErrorBody if anthropic else ErrorBody
    content: dict[str, Any] = {"application/json": {}}
    if streams:
        content["text/event-stream"] = {"schema": _EVENT}
    responses: dict[int | str, dict[str, Any]] = {
        200: {"model": answer, "description": "The answer.", "content": content},
        **{status: {"model": error, "description": text} for status, text in _ERRORS.items()},
        **(more or {}),
    }
    if body is None:
        return {"response_model": None, "responses": responses}
    _BODIES[body.__name__] = body
    extra = {"openapi_extra": {_MARK: body.__name__, _REQUIRED: body_required}}
    return {"response_model": None, "responses": responses, **extra}


def install(app: FastAPI) -> None:
    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes, summary=_SUMMARY)
    operations = [entry for path in document["paths"].values() for entry in path.values()]
    names = sorted({entry[_MARK] for entry in operations if _MARK in entry})
    _, schemas = models_json_schema([(_BODIES[name], "validation") for name in names], ref_template=_REFS)
    document["components"]["schemas"].update(schemas.get("$defs", {}))
    for entry in operations:
        if name := entry.pop(_MARK, None):
            schema = {"$ref": _REFS.format(model=name)}
            required = entry.pop(_REQUIRED)
            entry["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
            # FastAPI's own validation errors never happen here: the bodies are not its business.
            entry["responses"].pop("422", None)
    return document


_SUMMARY = "One language model, served by many machines."
