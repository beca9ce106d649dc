"""POST /models/pull and GET /models/pulls: models that the server fetches into the store of its machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from chorus.api.answers import ErrorBody, ResponseModel
from chorus.api.auth import require_admin
from chorus.api.body import read_body
from chorus.api.errors import ApiError, sentence
from chorus.api.fields import Name, RequestBody
from chorus.api.manage.owned import owner_of
from chorus.api.openapi import operation
from chorus.api.server.gate import record_of
from chorus.api.server.lifetime import Interrupted
from chorus.api.service import Service
from chorus.messages.deploy import PullRow


class PullRequest(RequestBody):
    model: Name
    wait: bool = True
    """Answer when it is done; else when it is begun."""

    @property
    def asked_model(self) -> None:
        """It need not be served."""


class PullState(ResponseModel):
    """Of what is fetched now: first the model's description, then its weights."""

    model: str
    state: str
    detail: str
    done_bytes: int
    total_bytes: int | None
    started_at: float


class PullList(ResponseModel):
    """Those under way, and the last that have ended, as they began."""

    pulls: list[PullState]


_MORE: dict[int | str, dict[str, Any]] = {
    202: {"model": PullState, "description": "It is under way."},
    409: {"model": ErrorBody, "description": "It cannot be done, or has failed; the message says why."},
}


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/models/pull", **operation(PullRequest, PullState, more=_MORE))
    async def pull(request: Request) -> Response:
        record = record_of(request.scope)
        require_admin(record)
        body = await read_body(request, PullRequest, service.settings.limits)
        if not record.may_use([body.model]):
            told = f"The model {body.model!r} is not served to the key {record.owner!r}."
            raise ApiError(404, told, param="model", code="model_not_found")
        _, started_at = await owner_of(service).pull(body.model)
        patience = service.settings.load_patience_seconds if body.wait else 0.0
        try:
            async with service.lifetimes.begin(request.receive):
                row = await service.directory.pulled(body.model, started_at, patience)
        except Interrupted as interruption:
            raise interruption.as_error() from None
        row = row or PullRow(body.model, started_at=started_at)
        if row.failure:
            raise ApiError(409, sentence(row.failure), param="model", code="pull_failed")
        return JSONResponse(described(row), status_code=200 if row.ended else 202)

    @routes.get("/models/pulls", **operation(None, PullList))
    async def pulls(request: Request) -> dict[str, Any]:
        record = record_of(request.scope)
        return {"pulls": [described(row) for row in service.directory.pulls if record.may_use([row.name])]}

    return routes


def described(row: PullRow) -> dict[str, Any]:
    if row.failure:
        row = replace(row, detail=row.failure)
    return {
        "model": row.name,
        "state": "failed" if row.failure else "done" if row.ended else "running",
        "detail": row.detail,
        "done_bytes": row.done_bytes,
        "total_bytes": row.total_bytes or None,
        "started_at": round(row.started_at, 3),
    }
