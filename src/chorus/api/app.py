"""The application: routes, error shapes, request ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

import chorus
from chorus.api import describe, errors, meta, tokens
from chorus.api.anthropic import routes as messages
from chorus.api.auth import Guard
from chorus.api.openai import embeddings
from chorus.api.openai.chat import routes as chat
from chorus.api.openai.completions import routes as completions
from chorus.api.openai.responses import routes as responses
from chorus.api.server.access import AccessLog
from chorus.api.server.head import HeadAsGet
from chorus.api.server.sites import SiteGuard
from chorus.api.service import Service
from chorus.security.key_file import LiveKeys


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
        # The pages that show the description load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    for routes in (chat, completions, responses, messages, embeddings, tokens, meta):
        app.include_router(routes.router(service))
    errors.install(app)
    describe.install(app)
    # The last one added is the first to see a request.
    settings = service.settings
    if settings.keys_file:
        app.add_middleware(Guard, keys=LiveKeys(settings.keys_file))
    else:
        app.add_middleware(SiteGuard, hosts=(*settings.hosts, settings.host), origins=settings.cors_origins)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(HeadAsGet)
    app.add_middleware(AccessLog)
    return app
