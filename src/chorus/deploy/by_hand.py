"""Rank 0 of a hostfile with an OpenAI endpoint: the leader here, the other ranks wherever somebody started them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace

from chorus.config.hostfile import DEFAULT_PORT, Hostfile, split_address
from chorus.config.sources import ConfigError, Settings, load_settings
from chorus.deploy.front_end import (
    ENGINE_GRACE_SECONDS,
    Access,
    CannotServe,
    api_settings,
    find_access,
    find_model,
    listen,
    run_announced,
)
from chorus.deploy.programs import engine_address, engine_spec, front_end_program, rank_programs
from chorus.deploy.supervisor import Group, Supervisor
from chorus.models import LocalModel
from chorus.platform.process.lifeline import Lifeline
from chorus.transport.channel import is_private


def lead_with_api(
    model: str,
    addresses: tuple[str, ...],
    transport: str,
    addr: str,
    coordinator: str | None,
    hosts: Hostfile,
    start_timeout: float,
    threads: int | None,
    trust_remote_code: bool,
    log_level: str,
) -> None:
    """Serve until stopped; fails when a rank does not come in time."""
    try:
        host, port = split_address(addr)
        overrides = {
            "model": model,
            "api": {"host": host, "port": port or DEFAULT_PORT},
            "engine": {"transport": transport, "threads": threads, "trust_remote_code": trust_remote_code or None},
            "log": {"level": log_level},
        }
        settings = load_settings(None, overrides, environment={})
    except (ConfigError, ValueError) as error:
        raise CannotServe(str(error)) from None
    access = find_access(settings, insecure=False)
    with contextlib.closing(listen(host, port or DEFAULT_PORT)) as listener:
        found = find_model(model)
        asyncio.run(_lead(settings, found, addresses, coordinator, hosts, start_timeout, listener, access))


async def _lead(
    settings: Settings,
    model: LocalModel,
    addresses: tuple[str, ...],
    coordinator: str | None,
    hosts: Hostfile,
    start_timeout: float,
    listener: socket.socket,
    access: Access,
) -> None:
    lifeline = Lifeline()
    folder = lifeline.path.parent
    many = addresses if len(addresses) > 1 else ()
    spec = engine_spec(settings, model, folder, many).model_copy(
        update={
            "model": model.name,
            "coordinator": coordinator,
            "insecure": not all(is_private(address) for address in addresses),
            "start_timeout_seconds": start_timeout or 365 * 86400.0,
            "rdma_devices": [list(host.rdma) for host in hosts.hosts] if all(h.rdma for h in hosts.hosts) else None,
        }
    )
    leader = rank_programs(spec)[0]
    leader = replace(leader, environment=dict(hosts.envs))
    front_end = front_end_program(api_settings(settings, model, engine_address(folder), listener, access), folder)
    silence = settings.watch.silence_seconds
    supervisor = Supervisor(
        Group("leader", [leader], lifeline, ENGINE_GRACE_SECONDS, silence),
        Group("front end", [front_end], lifeline, settings.api.shutdown_grace_seconds + 2, silence),
    )
    try:
        await run_announced(supervisor, engine_address(folder), model, access.url(listener))
    finally:
        lifeline.cut()
