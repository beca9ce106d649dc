"""GET /, the page to a browser and a summary to others; its files; and the one stream by which it is kept current."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from chorus.api.errors import ApiError
from chorus.api.openapi import operation
from chorus.api.page import shell
from chorus.api.page.live import Live, Viewer
from chorus.api.page.snapshot import Observer, Scene
from chorus.api.server.gate import record_of
from chorus.api.server.wanted import prefers_page
from chorus.api.service import Service
from chorus.api.views.answers import Summary
from chorus.api.views.meta import summary
from chorus.api.watching import WatchResponse

STREAM_SECONDS = 120.0
"""Then a browser asks again, and its key is looked at again."""

_UNDESCRIBED: dict[str, Any] = {"include_in_schema": False, "response_model": None}
"""For the page alone, which comes with the server; nobody makes a client for it."""


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    observer = Observer(service)
    live: Live[Scene] = Live(observer.take, observer.write)
    shell.files()

    @routes.get("/", **operation(None, Summary))
    async def root(request: Request) -> Response:
        if prefers_page(request.headers.get("accept", "")):
            return shell.files()[shell.INDEX].answer(request.headers.get("if-none-match"))
        return JSONResponse(await summary(service, request), headers={"vary": "accept"})

    @routes.get("/static/{name:path}", **_UNDESCRIBED)
    async def static(name: str, request: Request) -> Response:
        found = shell.files().get(name)
        if found is None:
            raise ApiError(404, "The page has no such file.", code="not_found")
        return found.answer(request.headers.get("if-none-match"))

    @routes.get("/live", **_UNDESCRIBED)
    async def watch(request: Request) -> Response:
        return WatchResponse(service.lifetimes, live.frames(Viewer.of(record_of(request.scope))), STREAM_SECONDS)

    return routes
