"""POST /cluster/plan: who would hold what of a model, and what one more machine would bring."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from chorus.api.answers import ErrorBody, ResponseModel
from chorus.api.body import read_body
from chorus.api.fields import Name, RequestBody
from chorus.api.manage.owned import owner_of
from chorus.api.openapi import operation
from chorus.api.server.gate import record_of
from chorus.api.service import Service


class PlanRequest(RequestBody):
    model: Name | None = None
    """The default model where none is named."""
    add: list[Annotated[str, Field(max_length=64)]] = Field(default_factory=list, max_length=8)
    """Machines on paper, as `chorus plan --nodes` takes them: 16GB:10, or laptop=16GB:10."""


class PlanOutcome(ResponseModel):
    """A plan, or why there is none."""

    fits: bool
    plan: dict[str, Any] | None
    """As `chorus plan --json` prints it."""
    reason: str | None
    missing_bytes: int | None
    hints: list[str]


class Plans(ResponseModel):
    """With the machines that there are, and with those on paper besides."""

    model: str
    today: PlanOutcome
    then: PlanOutcome | None


_MORE: dict[int | str, dict[str, Any]] = {
    409: {"model": ErrorBody, "description": "It cannot be planned; the message says why."},
}


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/cluster/plan", **operation(PlanRequest, Plans, body_required=False, more=_MORE))
    async def plan(request: Request) -> Response:
        record = record_of(request.scope)
        body = await read_body(request, PlanRequest, service.settings.limits, empty=True)
        # Of a model that is not served here something may have to be fetched.
        elsewhere = record.may_admin and record.models is None and not service.directory.knows(body.model)
        name = body.model if elsewhere else (await service.look_for(body.model, record)).id
        return Response(await owner_of(service).plan(name or "", body.add), media_type="application/json")

    return routes
