"""`chorus localai`: the backend that LocalAI starts, or connects to."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from chorus.cli.output import fail
from chorus.config.hostfile import BACKENDS, split_address
from chorus.config.sources import ConfigError, load_settings
from chorus.deploy.programs import CannotLaunch, engine_spec, rank_addresses, rank_programs
from chorus.localai.access import TOKEN_VARIABLE
from chorus.localai.engine_host import Launch
from chorus.localai.errors import LoadFailed
from chorus.localai.plan import HOSTFILE_VARIABLE, LoadPlan
from chorus.localai.server import ListenError, ServerSettings
from chorus.localai.server import serve as serve_backend
from chorus.models import LocalModel
from chorus.platform import cores
from chorus.platform.process import logs
from chorus.security.key_rules import needs_keys
from chorus.transport import catalog
from chorus.transport.channel import is_private

log = logging.getLogger(__name__)

WARM_UP_SECONDS = 120.0


def localai(
    addr: Annotated[str, typer.Option(help="HOST:PORT that LocalAI connects to.")] = "localhost:50051",
    worker: Annotated[bool, typer.Option("--worker", help="Be one of the other ranks instead.")] = False,
    backend: Annotated[
        str | None, typer.Option(help=f"How ranks exchange tensors: {', '.join(sorted(set(BACKENDS.values())))}.")
    ] = None,
    hostfile: Annotated[Path | None, typer.Option(help="Addresses of all ranks, in rank order (JSON).")] = None,
    rank: Annotated[int, typer.Option(min=0, help="This machine's place in the hostfile; 0 serves LocalAI.")] = 0,
    coordinator: Annotated[
        str | None, typer.Option(help=f"{catalog.over_rdma().name}: HOST:PORT of rank 0 where the ranks meet.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback address without a token.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let models whose options ask for it run their own Python.")
    ] = False,
) -> None:
    """Serve LocalAI's backend protocol; the model and its options come from LocalAI.

    Example: chorus localai --addr 127.0.0.1:50051
    """
    if backend is not None and backend not in BACKENDS:
        fail(f"--backend {backend}: expected one of {', '.join(BACKENDS)}")
    if worker or rank:
        follow(backend, hostfile, rank, coordinator, trust_remote_code)
    else:
        lead(addr, backend, hostfile, coordinator, insecure, trust_remote_code)


def lead(
    addr: str,
    backend: str | None,
    hostfile: Path | None,
    coordinator: str | None,
    insecure: bool = False,
    trust_remote_code: bool = False,
) -> None:
    """Rank 0: LocalAI's server. What its model options do not say is taken from these flags."""
    # The environment's hostfile is LocalAI's to set, and a bad one is told when a model is loaded.
    environment = {name: value for name, value in os.environ.items() if name != HOSTFILE_VARIABLE}
    try:
        settings = load_settings(None, {"cluster": {"hostfile": str(hostfile) if hostfile else None}}, environment)
        host, _ = split_address(addr)
    except (ConfigError, ValueError) as error:
        fail(str(error))
    if not insecure and needs_keys(host) and not os.environ.get(TOKEN_VARIABLE):
        fail(
            f"{addr} can be reached from other machines and there is no token: set {TOKEN_VARIABLE} here and for "
            "LocalAI, or say --insecure if everybody there may use the model"
        )
    logs.setup(settings.log.level, settings.log.json_lines)
    flags: dict[str, dict[str, Any]] = {
        "cluster": {"hostfile": str(hostfile.resolve()) if hostfile else None, "coordinator": coordinator},
        "engine": {"transport": BACKENDS[backend] if backend else None},
    }
    trusted = trust_remote_code or settings.engine.trust_remote_code
    try:
        asyncio.run(serve_backend(ServerSettings(addr, flags, trusted), launch))
    except ListenError as error:
        fail(str(error))


def follow(
    backend: str | None, hostfile: Path | None, rank: int, coordinator: str | None, trust_remote_code: bool = False
) -> None:
    """One of the other ranks, as `chorus worker mlx-distributed` is; how tensors travel is the leader's to say."""
    from chorus.cli import worker  # it needs `lead` from here

    named = hostfile or Path(os.environ.get(HOSTFILE_VARIABLE) or ".")
    if named.name == "":
        fail("--worker needs --hostfile: the addresses of all ranks, in rank order")
    if rank == 0:
        fail("--worker needs --rank from 1 on: rank 0 is what LocalAI talks to, without --worker")
    worker.mlx_distributed(
        named,
        rank,
        backend=backend or catalog.by_hand()[0],
        coordinator=coordinator,
        trust_remote_code=trust_remote_code,
    )


def launch(plan: LoadPlan, model: LocalModel, folder: Path) -> Launch:
    """Every rank where there is no hostfile; with one, the leader alone: the others are started on their machines."""
    settings = plan.settings
    spec = engine_spec(settings, model, folder, plan.ranks or rank_addresses(folder, settings.engine.ranks))
    if plan.ranks:
        spec = spec.model_copy(update=_of_hostfile(plan, model))
    try:
        programs = rank_programs(spec)
    except CannotLaunch as error:
        raise LoadFailed(str(error)) from None
    if plan.ranks:
        leader = programs[0]
        programs = [replace(leader, environment={**leader.environment, **settings.cluster.env})]
    # The ranks' own deadline holds for meeting and then for loading.
    start_seconds = 2 * settings.engine.start_timeout_seconds + WARM_UP_SECONDS
    return Launch(spec.address, programs, start_seconds, settings.watch.silence_seconds)


def _of_hostfile(plan: LoadPlan, model: LocalModel) -> dict[str, Any]:
    """What ranks on other machines need besides: the model's name, and how to meet."""
    settings, devices = plan.settings, plan.settings.devices
    plaintext = not all(is_private(address) for address in plan.ranks)
    if plaintext:
        log.warning("ranks on other machines are met in plain text: use a network that you trust")
    here = plan.ranks[0].rpartition(":")[0]
    ranks_here = sum(address.rpartition(":")[0] == here for address in plan.ranks)
    return {
        "model": model.id,
        "insecure": plaintext,
        "coordinator": settings.cluster.coordinator,
        "rdma_devices": tuple(device.rdma for device in devices) if all(device.rdma for device in devices) else None,
        "threads": settings.engine.threads or cores.threads_per_rank(cores.usable_cores(), ranks_here),
    }
