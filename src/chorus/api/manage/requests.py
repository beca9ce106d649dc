"""GET /requests and POST /requests/cancel: what this front end works on, and an end to it by somebody's word."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from chorus.api.answers import ErrorBody, ResponseModel
from chorus.api.body import read_body
from chorus.api.errors import ApiError
from chorus.api.fields import RequestBody
from chorus.api.openapi import operation
from chorus.api.server.gate import record_of
from chorus.api.server.listing import RequestEntry
from chorus.api.service import Service


class RequestList(ResponseModel):
    """What runs, the oldest first; what has ended lately, the latest first."""

    running: list[RequestEntry]
    recent: list[RequestEntry]


class CancelRequest(RequestBody):
    id: Annotated[str, Field(min_length=1, max_length=128)]


class Cancelled(ResponseModel):
    id: str
    cancelled: int
    """How many requests of this id: clients may give the same one twice."""


_MORE: dict[int | str, dict[str, Any]] = {
    409: {"model": ErrorBody, "description": "It has ended already; the message says how."},
}


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    listing = service.listing

    @routes.get("/requests", **operation(None, RequestList))
    async def requests(request: Request) -> dict[str, Any]:
        record = record_of(request.scope)
        return {
            "running": [asdict(each.now()) for each in listing.running(record)],
            "recent": [asdict(each) for each in listing.recent(record)],
        }

    @routes.post("/requests/cancel", **operation(CancelRequest, Cancelled, more=_MORE))
    async def cancel(request: Request) -> dict[str, Any]:
        record = record_of(request.scope)
        body = await read_body(request, CancelRequest, service.settings.limits)
        found = [each for each in listing.running(record) if each.id == body.id]
        cancelled = sum(each.cancel(record) for each in found)
        if not cancelled:
            ends = [each.state for each in listing.recent(record) if each.id == body.id]
            raise not_running(body.id, "its last word is being sent" if found else ends[0] if ends else "")
        return {"id": body.id, "cancelled": cancelled}

    return routes


def not_running(request_id: str, end: str) -> ApiError:
    """`end`: how it has, where it is known."""
    if end:
        return ApiError(409, f"The request {request_id!r} has ended already: {end}.", code="request_ended")
    told = f"No request {request_id!r} runs here, or none of yours: GET /requests lists those that do."
    return ApiError(404, told, param="id", code="request_not_found")
