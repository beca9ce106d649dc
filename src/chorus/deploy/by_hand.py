"""Ranks of a hostfile, each started by hand on its machine: the leader with an OpenAI endpoint, or one that follows."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from chorus.config.file import ConfigError, read_file
from chorus.config.hostfile import DEFAULT_PORT, Hostfile, HostfileError, parse_hostfile, split_address
from chorus.config.settings import Settings
from chorus.config.sources import load_settings
from chorus.deploy.control import Control
from chorus.deploy.front_end import (
    ENGINE_GRACE_SECONDS,
    Access,
    Listener,
    api_settings,
    find_access,
    find_model,
    listen,
    run_announced,
)
from chorus.deploy.handover import FrontEnd
from chorus.deploy.programs import engine_address, engine_spec, front_end_program, rank_programs
from chorus.deploy.rendezvous import wait_for_all
from chorus.deploy.supervisor import ProcessGroup, Program, Supervisor
from chorus.errors import ChorusError
from chorus.models import LocalModel
from chorus.platform.process.exits import EXIT_CANNOT_START, EXIT_LEADER_GONE
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.restarts import Restarts, describe_exit, python
from chorus.platform.terminal import console
from chorus.transport.channel import is_private

TUNNELS_FILE = "localai_mlx_hostfile.json"
FOLLOWER_GRACE_SECONDS = 3.0
START_SECONDS = 600.0


class RankEnded(ChorusError):
    """This machine's rank does not stay alive: names it, its address and how it ended."""


def read_hosts(hostfile: Path, rank: int) -> Hostfile:
    if hostfile.name == TUNNELS_FILE:
        raise HostfileError(
            "",
            f"{hostfile} holds the tunnels of LocalAI's own p2p and not rank 0, so no group can form from it: "
            "use `chorus worker p2p-mlx`, or write a hostfile with the addresses of all ranks",
        )
    try:
        hosts = parse_hostfile(read_file(hostfile))
    except (ConfigError, HostfileError) as error:
        raise ConfigError(f"{hostfile}: {error}".replace(f"{hostfile}: {hostfile}", str(hostfile))) from None
    if rank >= len(hosts.hosts):
        raise ConfigError(f"{hostfile} has {len(hosts.hosts)} hosts, so there is no rank {rank}: ranks count from 0")
    return hosts


def lead_with_api(
    model: str,
    addresses: tuple[str, ...],
    transport: str,
    parallel: str | None,
    addr: str,
    coordinator: str | None,
    hosts: Hostfile,
    start_timeout: float,
    threads: int | None,
    trust_remote_code: bool,
    log_level: str,
) -> None:
    """Serve as rank 0 until stopped; raises GaveUp when a rank does not come in time."""
    host, port = split_address(addr)
    overrides = {
        "model": model,
        "api": {"host": host, "port": port or DEFAULT_PORT},
        "engine": {
            "transport": transport,
            "parallel": parallel,
            "threads": threads,
            "trust_remote_code": trust_remote_code or None,
        },
        "log": {"level": log_level},
    }
    settings = load_settings(None, overrides, environment={})
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
    listener: Listener,
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
    program = front_end_program(api_settings(settings, model, engine_address(folder), listener, access), folder)
    front_end = FrontEnd(program, lifeline, settings.api, settings.watch)
    supervisor = Supervisor(ProcessGroup("leader", [leader], lifeline, ENGINE_GRACE_SECONDS, settings.watch), front_end)
    control = Control(folder, listener.place[1], front_end)
    try:
        await run_announced(supervisor, control, engine_address(folder), model, access.url(listener))
    finally:
        lifeline.cut()


def follow(
    addresses: tuple[str, ...],
    rank: int,
    start_timeout: float = START_SECONDS,
    threads: int | None = None,
    trust_remote_code: bool = False,
    log_level: str = "info",
    environment: Mapping[str, str] | None = None,
) -> None:
    """Keep one following rank alive until stopped; raises RanksMissing when others do not come in time (0: never)."""
    if not is_private(addresses[rank]):
        console.print(
            "[yellow]warning:[/] no token, so this link is plain text: whoever reaches the port can run models of "
            "this machine's store, and nothing else; `chorus join` has TLS"
        )
    asyncio.run(_follow(addresses, rank, start_timeout, threads, trust_remote_code, log_level, environment or {}))


async def _follow(
    addresses: tuple[str, ...],
    rank: int,
    start_timeout: float,
    threads: int | None,
    trust_remote_code: bool,
    log_level: str,
    environment: Mapping[str, str],
) -> None:
    command = ["-m", "chorus.rank", "--rank", str(rank), "--listen", addresses[rank], "--own-store", "--insecure"]
    command += ["--log-level", log_level, *(["--threads", str(threads)] if threads else [])]
    command += ["--trust-remote-code"] if trust_remote_code else []
    lifeline = Lifeline()
    group = ProcessGroup(
        "rank", [Program(f"rank {rank}", python(*command), environment)], lifeline, FOLLOWER_GRACE_SECONDS
    )
    others = {number: address for number, address in enumerate(addresses) if number != rank}
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    keeper = asyncio.create_task(_keep(group, rank, addresses[rank]))
    meeting = asyncio.create_task(wait_for_all(others, start_timeout or None))
    stop = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait([keeper, meeting, stop], return_when=asyncio.FIRST_COMPLETED)
        if meeting.done():
            meeting.result()
            await asyncio.wait([keeper, stop], return_when=asyncio.FIRST_COMPLETED)
        if keeper.done():
            keeper.result()
    finally:
        for task in (keeper, meeting, stop):
            task.cancel()
        await asyncio.gather(keeper, meeting, stop, return_exceptions=True)
        await group.stop()
        lifeline.cut()


async def _keep(group: ProcessGroup, rank: int, address: str) -> None:
    restarts = Restarts()
    while True:
        await group.start()
        _, code = await group.ended()
        if code == EXIT_LEADER_GONE:
            restarts.has_run()
            continue
        now = time.monotonic()
        pause = restarts.pause(code, now, group.life(now))
        if code == EXIT_CANNOT_START:
            if pause is None:
                raise RankEnded(f"rank {rank} cannot start on {address}: its last log line says why")
            console.print(f"rank {rank} cannot start on {address} now: trying again in {pause:g} s")
        elif pause is None:
            raise RankEnded(f"rank {rank} at {address} keeps ending, last with {describe_exit(code)}")
        else:
            console.print(f"rank {rank} ended with {describe_exit(code)}: starting it again")
        await asyncio.sleep(pause)
