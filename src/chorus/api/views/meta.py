"""What the server says of itself: health, the served model, the service summary."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

import chorus
from chorus.api.answers import ErrorBody
from chorus.api.errors import RETRY_AFTER_SECONDS
from chorus.api.nodes import names_of_ranks, of_this_model, read_nodes
from chorus.api.openapi import UNVERSIONED, operation
from chorus.api.served import EngineView, Served, known_context, not_ready, read_config
from chorus.api.server.gate import record_of
from chorus.api.service import Service
from chorus.api.views.answers import ClusterStatus, Health, Live, ModelEntry, ModelInfo, ModelList, Ready
from chorus.messages.deploy import ModelState
from chorus.messages.engine import cache_facts_from_wire
from chorus.messages.proto import engine_pb2 as pb
from chorus.serving.errors import heard
from chorus.serving.models.directory import Model
from chorus.telemetry.phases import PHASES

NOTHING_OBSERVED = {"requests": 0, "tokens_per_second": None, "first_token_seconds": None}


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    settings = service.settings
    started = int(time.time())

    @routes.get("/health", **operation(None, Health))
    async def health(request: Request, model: str | None = None) -> dict[str, Any]:
        record = record_of(request.scope)
        asked, allowed = service.find_health(model, record), service.allowed(record)
        view = await look(asked, record.models)
        status = {"status": "ok" if view.ready else view.state}
        # Everybody may ask for the health; who has no key for the model is told no more than that.
        if asked not in allowed:
            return status
        return {
            **status,
            "model": asked.id,
            "version": chorus.__version__,
            "engine": engine_summary(view),
            "requests": {
                "open": asked.front.client.open_requests if asked.front else 0,
                "tasks": len(asyncio.all_tasks()),
            },
            "models": [brief(each, view if each is asked else None, record.models) for each in allowed],
            # It names the sources of all models.
            "configuration": settings.configuration if record.models is None else None,
        }

    @routes.get("/health/live", **operation(None, Live))
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get(
        "/health/ready",
        response_model=None,
        responses={200: {"model": Ready}, 404: {"model": ErrorBody}, 503: {"model": Ready}},
    )
    async def ready(request: Request, model: str | None = None) -> JSONResponse:
        record = record_of(request.scope)
        asked = service.find_health(model, record)
        view = await look(asked, record.models)
        detail = view.detail if asked in service.allowed(record) else ""
        body = {"state": view.state, "progress": view.progress, "detail": detail}
        if view.ready or (model is None and serves_others(service)):
            return JSONResponse(body)
        return JSONResponse(body, status_code=503, headers={"retry-after": str(RETRY_AFTER_SECONDS)})

    @routes.get("/model/info", **operation(None, ModelInfo))
    async def model_info(request: Request, model: str | None = None) -> dict[str, Any]:
        record = record_of(request.scope)
        asked = service.find_for(model, record)
        view = await look(asked, record.models)
        if view.description is None:
            raise not_ready(view)
        async with asked.held() as served:
            return {
                "id": asked.id,
                "name": asked.settings.name,
                "architecture": read_config(asked.settings.path).architecture,
                "chat_template": served.tokenizer.has_chat_template,
                **describe_model(view.description, served.context_length(view.description)),
            }

    @routes.get("/cluster/status", **operation(None, ClusterStatus))
    async def cluster_status(request: Request, model: str | None = None) -> dict[str, Any]:
        record = record_of(request.scope)
        asked = service.find_for(model, record)
        told, view = read_nodes(asked.settings.status_file), await look(asked, record.models)
        told = told if record.models is None else of_this_model(told)
        return {
            "model": asked.id,
            **describe_cluster(view, names_of_ranks(asked.settings.rank_names, told["nodes"])),
            "observed": asked.front.observed() if asked.front else NOTHING_OBSERVED,
            "models": [brief(each, view if each is asked else None, record.models) for each in service.allowed(record)],
            **told,
        }

    @routes.get("/models", **UNVERSIONED)
    @routes.get("/v1/models", **operation(None, ModelList))
    async def models(request: Request) -> dict[str, Any]:
        listed = service.allowed(record_of(request.scope))
        return {"object": "list", "data": await asyncio.gather(*(model_entry(each) for each in listed))}

    # An id may hold slashes, as those of Hugging Face do.
    @routes.get("/models/{model:path}", **UNVERSIONED)
    @routes.get("/v1/models/{model:path}", **operation(None, ModelEntry))
    async def model(model: str, request: Request) -> dict[str, Any]:
        return await model_entry(service.find_for(model, record_of(request.scope)))

    async def model_entry(model: Model[Served]) -> dict[str, Any]:
        view = await look(model)
        context = known_context(model)
        weights = sum(rank.weight_bytes for rank in view.description.ranks) if view.description else 0
        return {
            "id": model.id,
            "object": "model",
            "created": started,
            "owned_by": "chorus",
            "context_length": context,
            "max_model_len": context,
            "aliases": list(model.settings.names[1:]),
            "state": view.state,
            "loaded": view.ready,
            "size": model.row.booked_bytes or model.row.total_bytes or weights or None,
        }

    return routes


async def summary(service: Service, request: Request) -> dict[str, Any]:
    default = service.default
    return {
        "service": "chorus",
        "version": chorus.__version__,
        "model": default.id if default in service.allowed(record_of(request.scope)) else None,
        "status": (await look(default)).state,
        "endpoints": sorted(path for path in request.app.openapi()["paths"] if "{" not in path),
    }


async def look(model: Model[Served], models: tuple[str, ...] | None = None) -> EngineView:
    """As its engine says where it has one, else as its owner does, to a key for these models (None: all)."""
    row, description = heard(model.row, models), None
    if model.loaded and (served := model.front):
        view = await served.look()
        if row.state is ModelState.READY:
            return view
        description = view.description
    return EngineView(row.state.name.lower(), row.progress, row.detail, description)


def serves_others(service: Service) -> bool:
    """Where there are several models, whether the default one is loaded now says nothing of the server: it answers, and
    whoever asks for that model waits. Until its first load is over, the server starts."""
    default = service.default
    starts = default.state in (ModelState.WAITING, ModelState.LOADING) and not default.has_been_ready
    return len(service.directory.models) > 1 and service.directory.version > 0 and not starts


def brief(model: Model[Served], view: EngineView | None, models: tuple[str, ...] | None = None) -> dict[str, Any]:
    """As its owner last said, or its engine where that was asked, to a key for these models (None: all)."""
    row = heard(model.row, models)
    engine = view.description if view else None
    return {
        "id": model.id,
        "state": view.state if view else row.state.name.lower(),
        "progress": view.progress if view else row.progress,
        "detail": view.detail if view else row.detail,
        "booked_bytes": row.booked_bytes,
        "loaded_bytes": row.loaded_bytes,
        "total_bytes": row.total_bytes,
        "loads": row.loads,
        "aliases": list(model.settings.names[1:]),
        "context_length": known_context(model),
        "ranks": row.ranks or (len(engine.ranks) if engine else 0),
        "nodes": list(row.nodes),
        "running": model.running,
        "waiting": model.waiting,
        "until": row.until or None,
    }


def engine_summary(view: EngineView) -> dict[str, Any]:
    summary: dict[str, Any] = {"state": view.state, "progress": view.progress, "detail": view.detail}
    if (engine := view.description) is not None:
        summary |= {
            "version": engine.version,
            "running": engine.running,
            "queued": engine.queued,
            "step": engine.step,
            "load_count": engine.load_count,
            "started_at": engine.started_at,
            "cache": describe_cache(engine),
        }
    return summary


def describe_cache(engine: pb.Description) -> dict[str, Any] | None:
    """None while the engine loads."""
    if not engine.HasField("cache"):
        return None
    facts = asdict(cache_facts_from_wire(engine.cache))
    reason = facts.pop("off")
    asked = facts["prompt_tokens"]
    return {
        "enabled": not reason,
        "reason": reason or None,
        **facts,
        "hit_rate": round(facts["cached_tokens"] / asked, 4) if asked else None,
    }


def describe_cluster(view: EngineView, names: Mapping[int, str], known: EngineView | None = None) -> dict[str, Any]:
    """`known` is how it was seen before: where an engine says nothing, its ranks are told of as they were."""
    engine = view.description
    ranks = engine.ranks if engine else known.description.ranks if known and known.description else ()
    return {
        "state": view.state,
        "progress": view.progress,
        "detail": view.detail,
        "parallel": engine.parallel if engine else None,
        "transport": engine.transport if engine else None,
        "running": engine.running if engine else 0,
        "queued": engine.queued if engine else 0,
        "step": engine.step if engine else 0,
        "ranks": [
            {
                **_rank(rank),
                "node": names.get(rank.rank, rank.host),
                "host": rank.host,
                "pid": rank.pid,
                "memory_bytes": rank.memory_bytes,
                "step": rank.step,
                "tensor_bytes": rank.tensor_bytes,
                "sent_bytes": rank.sent_bytes,
                "phases": describe_phases(rank),
                "waited_for": {str(peer): round(s, 3) for peer, s in enumerate(rank.waited_seconds) if s},
                "state": rank_state(view, rank),
            }
            for rank in ranks
        ],
        "recoveries": describe_recoveries(engine) if engine else None,
    }


def describe_phases(rank: pb.RankDescription) -> dict[str, float]:
    """Seconds of its main thread since it began; empty of a rank that does not say."""
    return {phase: round(seconds, 3) for phase, seconds in zip(PHASES, rank.phase_seconds, strict=False)}


def rank_state(view: EngineView, rank: pb.RankDescription) -> str:
    """While a lost rank is replaced the others wait with what they hold."""
    if view.description is None:
        return "lost"
    if view.state == "recovering":
        return "lost" if rank.lost or not rank.last_layer else "waiting"
    return view.state


def describe_recoveries(engine: pb.Description) -> dict[str, Any]:
    last = engine.recoveries
    return {
        "count": last.count,
        "seconds": round(last.seconds, 3),
        "streams": last.streams,
        "tokens": last.tokens,
        "restored_tokens": last.restored_tokens,
        "cause": engine.loss.cause or None,
        "told": engine.loss.told or None,
    }


def _rank(rank: pb.RankDescription) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "device": rank.device,
        "dtype": rank.dtype,
        "form": rank.form,
        "unpacked": rank.form == "unpacked",
        "threads": rank.threads,
        **_layers(rank),
        "weight_bytes": rank.weight_bytes,
    }


def _layers(rank: pb.RankDescription) -> dict[str, Any]:
    """As people and plans count them: from 0, and the last one is held, too. The engine names the one after it. A rank
    that replaces a lost one holds none until it has loaded."""
    if not rank.last_layer:
        return {"layers": None, "first_layer": None, "last_layer": None}
    first, last = rank.first_layer, rank.last_layer - 1
    return {"layers": f"{first}-{last}", "first_layer": first, "last_layer": last}


def describe_model(engine: pb.Description, context_length: int) -> dict[str, Any]:
    ranks = [_rank(rank) for rank in engine.ranks]
    return {
        "context_length": context_length,
        "vocabulary": engine.vocabulary,
        "dtype": engine.ranks[0].dtype if engine.ranks else None,
        "parallel": engine.parallel,
        "transport": engine.transport,
        "number_of_devices": len(ranks),
        "ranks": ranks,
        "cache": describe_cache(engine),
    }
