"""The application: routes, error shapes, request ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import chorus
from chorus.api import errors, openapi, tokens
from chorus.api.anthropic import routes as messages
from chorus.api.auth import KeyGuard
from chorus.api.manage import cache, load, plan, pull, requests
from chorus.api.openai import embeddings
from chorus.api.openai.chat import routes as chat
from chorus.api.openai.completions import routes as completions
from chorus.api.openai.responses import routes as responses
from chorus.api.page import routes as page
from chorus.api.server.gate import Gate, record_of
from chorus.api.server.sites import SiteGuard
from chorus.api.service import Service
from chorus.api.views import events, meta, metrics
from chorus.security.key_file import LiveKeys

ROUTES = (
    chat,
    completions,
    responses,
    messages,
    embeddings,
    tokens,
    cache,
    load,
    pull,
    plan,
    requests,
    events,
    meta,
    metrics,
    page,
)


def create_app(service: Service) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.close()

    app = FastAPI(
        title="Chorus",
        version=chorus.__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        # The pages that show the description load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    for routes in ROUTES:
        app.include_router(routes.router(service))
    errors.install(app, lambda scope: record_of(scope).models)
    openapi.install(app)
    settings = service.settings
    guard = (
        KeyGuard(LiveKeys(settings.keys_file), settings.own_key_sha256)
        if settings.keys_file
        else SiteGuard((*settings.hosts, settings.host), settings.cors_origins)
    )
    app.add_middleware(Gate, guard=guard, cors_origins=settings.cors_origins)
    return app
