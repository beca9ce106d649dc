"""POST /cache/clear: forget what is stored of earlier requests."""

from __future__ import annotations

from fastapi import APIRouter, Request

from chorus.api.answers import ResponseModel
from chorus.api.auth import require_admin
from chorus.api.body import read_request
from chorus.api.fields import Name, RequestBody
from chorus.api.openapi import operation
from chorus.api.served import Served, not_ready
from chorus.api.server.gate import record_of
from chorus.api.service import Service
from chorus.api.views.meta import look
from chorus.serving.models.directory import Model

CLEAR_SECONDS = 40.0
"""A little longer than the engine itself takes before it says that it has not managed."""


class ClearRequest(RequestBody):
    model: Name | None = None
    """All that are loaded where none is named."""


class Cleared(ResponseModel):
    """What was forgotten. Running requests have copies and go on."""

    entries: int
    bytes: int
    """On the rank that held most."""


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/cache/clear", **operation(ClearRequest, Cleared, body_required=False))
    async def clear(request: Request) -> dict[str, int]:
        record = record_of(request.scope)
        require_admin(record)
        body = await read_request(request, ClearRequest, service, empty=True)
        named = [service.find(body.model)] if body.model is not None else service.allowed(record)
        chosen = [model for model in named if model.state.takes_requests]
        if not chosen:
            raise not_ready(await look(named[0], record.models))
        cleared = [await _clear(model) for model in chosen]
        return {"entries": sum(entries for entries, _ in cleared), "bytes": sum(size for _, size in cleared)}

    return routes


async def _clear(model: Model[Served]) -> tuple[int, int]:
    async with model.held() as served:
        view = await served.look()
        if not view.ready:
            raise not_ready(view)
        return await served.client.clear_cache(CLEAR_SECONDS)
