"""GET /metrics: what this server counts, for Prometheus. Nobody is asked: what the engines told last is here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

import chorus
from chorus.api.answers import ErrorBody
from chorus.api.served import Served
from chorus.api.server.gate import record_of
from chorus.api.service import Service
from chorus.messages.deploy import ModelState
from chorus.messages.figures import Figure
from chorus.serving.models.directory import Model
from chorus.telemetry.metrics import declared
from chorus.telemetry.metrics.exposition import written
from chorus.telemetry.metrics.models import ModelMetrics

AT_ONCE_MODELS = 4
"""Each takes a millisecond or two; streams do not wait for more, and few are not worth the way to a thread."""


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.get("/metrics", response_class=PlainTextResponse, responses={401: {"model": ErrorBody}})
    async def metrics(request: Request) -> Response:
        record = record_of(request.scope)
        listed = {model.id: model for model in service.allowed(record)}
        # What is gone has no other name by which a key for some models could be for it.
        seen = {**dict.fromkeys(listed), **service.metrics.models} if record.models is None else dict.fromkeys(listed)
        told = {name: [*_figures(listed.get(name), service.metrics.models.get(name))] for name in seen}
        told[""] = [Figure(declared.BUILD.name, (chorus.__version__,), 1)]
        for model in listed.values():
            service.node_names.look(model.settings)
        nodes = {name: service.node_names.known(name) for name in seen}
        write = partial(written, told, request.headers.get("accept", ""), nodes)
        body, content_type = write() if len(told) <= AT_ONCE_MODELS else await asyncio.to_thread(write)
        return Response(body, headers={"content-type": content_type})

    return routes


def _figures(model: Model[Served] | None, counted: ModelMetrics | None) -> Iterator[Figure]:
    """Of one model: as its owner lists it, if it still does, and what was counted of it, if anything was."""
    up = counted is not None and counted.engine.up
    if model is not None:
        for state in ModelState:
            yield Figure(declared.MODEL_STATE.name, (state.name.lower(),), model.state is state)
        # Without an engine that tells, whatever is open waits for one.
        open_here = model.front.client.open_requests if model.front and not up else 0
        yield Figure(declared.RUNNING.name, value=0)
        yield Figure(declared.WAITING.name, value=model.waiting + open_here)
    if counted is None:
        yield Figure(declared.ENGINE_UP.name, value=0)
        return
    yield from counted.answers.figures()
    yield from counted.engine.figures()
