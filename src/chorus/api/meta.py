"""What the server says of itself: health, the served model, the service summary."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

import chorus
from chorus.api.errors import RETRY_AFTER_SECONDS
from chorus.api.meta_answers import ClusterStatus, Health, Live, ModelEntry, ModelInfo, ModelList, Ready, Summary
from chorus.api.openapi import UNVERSIONED, operation
from chorus.api.server.gate import record_of
from chorus.api.service import EngineView, Service, not_ready
from chorus.config.front_end import ApiSettings
from chorus.messages.engine import cache_facts_from_wire
from chorus.messages.proto import engine_pb2 as pb


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    settings = service.settings
    started = int(time.time())
    architecture = read_architecture(settings.model_path)

    @routes.get("/", **operation(None, Summary))
    async def summary(request: Request) -> dict[str, Any]:
        return {
            "service": "chorus",
            "version": chorus.__version__,
            "model": settings.model_id if told_of_model(request) else None,
            "status": (await service.look()).state,
            "endpoints": sorted(path for path in request.app.openapi()["paths"] if "{" not in path),
        }

    @routes.get("/health", **operation(None, Health))
    async def health(request: Request) -> dict[str, Any]:
        view = await service.look()
        status = {"status": "ok" if view.ready else view.state}
        # Everybody may ask for the health; who has no key for the model is told no more than that.
        if not told_of_model(request):
            return status
        return {
            **status,
            "model": settings.model_id,
            "version": chorus.__version__,
            "engine": engine_summary(view),
            "requests": {"open": service.client.open_requests, "tasks": len(asyncio.all_tasks())},
            "configuration": settings.configuration,
        }

    @routes.get("/health/live", **operation(None, Live))
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get("/health/ready", response_model=None, responses={200: {"model": Ready}, 503: {"model": Ready}})
    async def ready() -> JSONResponse:
        view = await service.look()
        body = {"state": view.state, "progress": view.progress, "detail": view.detail}
        if view.ready:
            return JSONResponse(body)
        return JSONResponse(body, status_code=503, headers={"retry-after": str(RETRY_AFTER_SECONDS)})

    @routes.get("/model/info", **operation(None, ModelInfo))
    async def model_info(request: Request) -> dict[str, Any]:
        service.check_model(None, record_of(request.scope))
        view = await service.look()
        if view.description is None:
            raise not_ready(view)
        return {
            "id": settings.model_id,
            "name": settings.model_name,
            "architecture": architecture,
            "chat_template": service.tokenizer.has_chat_template,
            **describe_model(view.description, service.context_length(view.description)),
        }

    @routes.get("/cluster/status", **operation(None, ClusterStatus))
    async def cluster_status(request: Request) -> dict[str, Any]:
        service.check_model(None, record_of(request.scope))
        told = read_nodes(settings.status_file)
        return {
            "model": settings.model_id,
            **describe_cluster(await service.look(), names_of_ranks(settings.rank_names, told["nodes"])),
            "observed": service.observed(),
            **told,
        }

    @routes.get("/models", **UNVERSIONED)
    @routes.get("/v1/models", **operation(None, ModelList))
    async def models(request: Request) -> dict[str, Any]:
        return {"object": "list", "data": [await model_entry()] if told_of_model(request) else []}

    # An id may hold slashes, as those of Hugging Face do.
    @routes.get("/models/{model:path}", **UNVERSIONED)
    @routes.get("/v1/models/{model:path}", **operation(None, ModelEntry))
    async def model(model: str, request: Request) -> dict[str, Any]:
        service.check_model(model, record_of(request.scope))
        return await model_entry()

    def told_of_model(request: Request) -> bool:
        return record_of(request.scope).may_use(settings.names)

    async def model_entry() -> dict[str, Any]:
        description = (await service.look()).description
        # The engine knows it once it has read the model; the list answers before that too.
        context = settings.context_length
        if description is not None and description.context_length:
            context = service.context_length(description)
        return {
            "id": settings.model_id,
            "object": "model",
            "created": started,
            "owned_by": "chorus",
            "context_length": context,
            "max_model_len": context,
            "aliases": other_names(settings),
        }

    return routes


def other_names(settings: ApiSettings) -> list[str]:
    """Each once: an alias may well be the short name, and the short name the id."""
    names = dict.fromkeys((settings.model_name, *settings.aliases))
    return [name for name in names if name != settings.model_id]


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


def describe_cluster(view: EngineView, names: Mapping[int, str]) -> dict[str, Any]:
    engine = view.description
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
            }
            for rank in (engine.ranks if engine else ())
        ],
        "recoveries": describe_recoveries(engine) if engine else None,
    }


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


def names_of_ranks(told: Sequence[str], nodes: Sequence[dict[str, Any]]) -> dict[int, str]:
    """By their numbers. Which node has which rank changes when one is lost, so what the nodes say goes first."""
    at_nodes = {rank["rank"]: node["name"] for node in nodes for rank in node["ranks"] if rank["running"]}
    return {**dict(enumerate(told)), **at_nodes}


def read_nodes(status_file: Path | None) -> dict[str, Any]:
    """What the coordinator last wrote of its nodes; a server on one machine has none."""
    nothing: dict[str, Any] = {"plan": None, "nodes": [], "problems": {}}
    try:
        found = json.loads(status_file.read_text(encoding="utf-8")) if status_file else {}
    except (OSError, ValueError):
        return nothing
    return {key: found.get(key) or empty for key, empty in nothing.items()}


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


def read_architecture(model_path: Path) -> str | None:
    """From the model's own config.json; None where it does not say, since a model is served all the same."""
    try:
        config = json.loads((model_path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    said = config if isinstance(config, dict) else {}
    classes = said.get("architectures")
    named = [*(classes if isinstance(classes, list) else [classes]), said.get("model_type")]
    return next((name for name in named if isinstance(name, str)), None)
