"""The application: routes, error shapes, request ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import chorus
from chorus.api import errors, meta, openai_chat, openai_completions
from chorus.api.access import AccessLog
from chorus.api.service import Service


def create_app(service: Service) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.client.close()

    app = FastAPI(
        title="Chorus",
        version=chorus.__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        # The bodies are checked by our own types, which this page would not show; and it loads scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    for routes in (openai_chat, openai_completions, meta):
        app.include_router(routes.router(service))
    errors.install(app)
    app.add_middleware(AccessLog)
    return app
