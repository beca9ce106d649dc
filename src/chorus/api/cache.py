"""POST /cache/clear: forget what is stored of earlier requests."""

from __future__ import annotations

from fastapi import APIRouter, Request

from chorus.api.answers import ResponseModel
from chorus.api.auth import require_admin
from chorus.api.openapi import operation
from chorus.api.server.gate import record_of
from chorus.api.service import Service, not_ready

CLEAR_SECONDS = 40.0
"""A little longer than the engine itself takes before it says that it has not managed."""


class Cleared(ResponseModel):
    """What was forgotten. Running requests have copies and go on."""

    entries: int
    bytes: int
    """On the rank that held most."""


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/cache/clear", **operation(None, Cleared))
    async def clear(request: Request) -> dict[str, int]:
        record = record_of(request.scope)
        require_admin(record)
        service.check_model(None, record)
        view = await service.look()
        if not view.ready:
            raise not_ready(view)
        entries, size = await service.client.clear_cache(CLEAR_SECONDS)
        return {"entries": entries, "bytes": size}

    return routes
