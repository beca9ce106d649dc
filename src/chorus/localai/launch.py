"""Rank 0 for LocalAI: the server that it talks to, and the engine that is started for each model it loads."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from chorus.config.hostfile import BACKENDS, split_address
from chorus.config.sources import load, use_cache_dir
from chorus.deploy.front_end import CannotServe
from chorus.deploy.local_plan import rank_needs
from chorus.deploy.programs import CannotLaunch, engine_spec, rank_addresses, rank_programs, threads_of
from chorus.localai.access import TOKEN_VARIABLE
from chorus.localai.engine_host import EngineLaunch
from chorus.localai.errors import LoadFailed
from chorus.localai.plan import HOSTFILE_VARIABLE, LoadPlan
from chorus.localai.server import ServerSettings, serve
from chorus.localai.settings import without_effect
from chorus.models import LocalModel
from chorus.models.resolve import name_elsewhere
from chorus.platform.accelerator.mlx_import import require_mlx
from chorus.platform.process import logs
from chorus.security.key_rules import needs_keys
from chorus.transport.channel import is_private

log = logging.getLogger(__name__)

WARM_UP_SECONDS = 120.0


def lead(
    addr: str | None,
    backend: str | None,
    hostfile: Path | None,
    coordinator: str | None,
    insecure: bool = False,
    trust_remote_code: bool = False,
    engine: Mapping[str, Any] | None = None,
    rank: int | None = None,
) -> None:
    """Serve LocalAI until stopped. What its model options do not say is taken from these flags, `engine` more of the
    engine's settings among them; what those do not say, from the settings.
    """
    if rank:
        raise _other_rank(rank, "--rank", hostfile)
    # The environment's hostfile is LocalAI's to set, and a bad one is told when a model is loaded.
    environment = {name: value for name, value in os.environ.items() if name != HOSTFILE_VARIABLE}
    place = {"hostfile": str(hostfile) if hostfile else None, "address": addr, "rank": rank}
    loaded = load(None, {"cluster": place}, environment)
    settings, addr = loaded.settings, loaded.settings.cluster.address
    if settings.cluster.rank:
        raise _other_rank(settings.cluster.rank, loaded.origins["cluster.rank"], hostfile)
    host, _ = split_address(addr)
    if not insecure and needs_keys(host) and not os.environ.get(TOKEN_VARIABLE):
        raise CannotServe(
            f"{addr} can be reached from other machines and there is no token: set {TOKEN_VARIABLE} here and for "
            "LocalAI, or say --insecure if everybody there may use the model"
        )
    logs.setup(settings.log.level, settings.log.json_lines)
    for warning in (*loaded.warnings, *without_effect(loaded)):
        log.warning("%s", warning)
    use_cache_dir(settings)
    flags: dict[str, dict[str, Any]] = {
        "cluster": {"hostfile": str(hostfile.resolve()) if hostfile else None, "coordinator": coordinator},
        "engine": {**(engine or {}), **({"transport": BACKENDS[backend]} if backend else {})},
    }
    require_mlx()
    trusted = trust_remote_code or settings.engine.trust_remote_code or bool((engine or {}).get("trust_remote_code"))
    asyncio.run(serve(ServerSettings(addr, flags, trusted), launch))


def _other_rank(rank: int, said: str, hostfile: Path | None) -> CannotServe:
    command = f"chorus worker mlx-distributed --hostfile {hostfile or 'FILE'} --rank {rank}"
    return CannotServe(
        f"this command is rank 0, which LocalAI talks to, and {said} says {rank}: start that with {command}"
    )


def launch(plan: LoadPlan, model: LocalModel, folder: Path) -> EngineLaunch:
    """Every rank where there is no hostfile; with one, the leader alone: the others are started on their machines."""
    settings = plan.settings
    spec = engine_spec(settings, model, folder, plan.ranks or rank_addresses(folder, settings.engine.ranks))
    if plan.ranks:
        spec = spec.model_copy(update=_of_hostfile(plan, model))
    try:
        programs = rank_programs(spec)
    except CannotLaunch as error:
        raise LoadFailed(str(error)) from None
    here = programs[:1] if plan.ranks else programs
    programs = [replace(each, environment={**each.environment, **settings.cluster.env}) for each in here]
    # The ranks' own deadline holds for meeting and then for loading.
    start_seconds = 2 * settings.engine.start_timeout_seconds + WARM_UP_SECONDS
    return EngineLaunch(spec.address, programs, start_seconds, settings.watch)


def _of_hostfile(plan: LoadPlan, model: LocalModel) -> dict[str, Any]:
    """What ranks on other machines need besides: the model's name, and how to meet."""
    settings = plan.settings
    plaintext = not all(is_private(address) for address in plan.ranks)
    if plaintext:
        log.warning("ranks on other machines are met in plain text: use a network that you trust")
    here = plan.ranks[0].rpartition(":")[0]
    ranks_here = sum(address.rpartition(":")[0] == here for address in plan.ranks)
    return {
        "model": name_elsewhere(model),
        "needs": rank_needs(settings, model, len(plan.ranks)),
        "insecure": plaintext,
        "coordinator": settings.cluster.coordinator,
        "rdma_devices": settings.rdma_devices,
        **threads_of(settings.engine.threads, ranks_here),
    }
