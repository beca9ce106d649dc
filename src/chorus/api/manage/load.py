"""POST /models/load and /models/unload: which models are in memory, by somebody's word and not by demand."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from chorus.api.answers import ErrorBody, ResponseModel
from chorus.api.auth import require_admin
from chorus.api.body import read_request
from chorus.api.fields import Name, RequestBody
from chorus.api.manage.owned import owner_of
from chorus.api.openapi import operation
from chorus.api.server.gate import record_of
from chorus.api.server.lifetime import Interrupted
from chorus.api.service import Service
from chorus.messages.deploy import ModelState

_LOADED = frozenset({ModelState.READY})
_UNLOADED = frozenset(ModelState) - {ModelState.READY, ModelState.DRAINING}
"""Somebody may wait for it, so that it is loaded again at once."""


class UnloadRequest(RequestBody):
    model: Name
    wait: bool = True
    """Answer when it is done; else when it is decided."""


class LoadRequest(UnloadRequest):
    force: bool = False
    """Although it does not fit beside the others."""


class LoadState(ResponseModel):
    """200 when it is done, 202 while it is not."""

    id: str
    state: str
    progress: float
    detail: str
    told: str
    """What was decided, for people."""


_MORE: dict[int | str, dict[str, Any]] = {
    202: {"model": LoadState, "description": "It is decided, and not done so far."},
    409: {"model": ErrorBody, "description": "It cannot be done; the message says why."},
}


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/models/load", **operation(LoadRequest, LoadState, more=_MORE))
    async def load(request: Request) -> Response:
        require_admin(record_of(request.scope))
        body = await read_request(request, LoadRequest, service)
        model_id, told = await owner_of(service).load(service.find(body.model).id, body.force)
        return await settled(request, model_id, told, _LOADED, body.wait)

    @routes.post("/models/unload", **operation(UnloadRequest, LoadState, more=_MORE))
    async def unload(request: Request) -> Response:
        require_admin(record_of(request.scope))
        body = await read_request(request, UnloadRequest, service)
        model = service.find(body.model)
        # A load that is ended has its processes until another state comes.
        done = _UNLOADED - {ModelState.LOADING} if model.state is ModelState.LOADING else _UNLOADED
        model_id, told = await owner_of(service).unload(model.id)
        return await settled(request, model_id, told, done, body.wait)

    async def settled(
        request: Request, model_id: str, told: str, states: frozenset[ModelState], wait: bool
    ) -> JSONResponse:
        model = service.find(model_id)
        done = model.state in states
        if wait and not done:
            try:
                async with service.lifetimes.begin(request.receive):
                    done = await model.settled(states, service.settings.load_patience_seconds)
            except Interrupted as interruption:
                raise interruption.as_error() from None
        row = model.row
        body = {"id": row.id, "state": row.state.name.lower(), "progress": row.progress, "detail": row.detail}
        return JSONResponse({**body, "told": told}, status_code=200 if done else 202)

    return routes
