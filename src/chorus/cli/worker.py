"""`chorus worker`: ranks started by hand, flag for flag as LocalAI's users know them."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from chorus.cli.join import agent_options, run_agent
from chorus.cli.output import console, fail
from chorus.cli.token_source import read_token
from chorus.config.file import read_file
from chorus.config.hostfile import BACKENDS, Hostfile, HostfileError, parse_hostfile
from chorus.config.sources import ConfigError
from chorus.deploy.by_hand import lead_with_api
from chorus.deploy.rendezvous import NoAddress, RanksMissing, rank_addresses, wait_for_all
from chorus.deploy.supervisor import Group, Program
from chorus.platform.process import logs
from chorus.platform.process.exits import EXIT_CANNOT_START, EXIT_LEADER_GONE
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.restarts import Restarts, describe_exit, python
from chorus.security.node_folder import DOOR_PORT, BadName
from chorus.security.token import BadToken
from chorus.transport import catalog
from chorus.transport.channel import is_private

app = typer.Typer(help="Run one rank by hand.", no_args_is_help=True)

TUNNELS_FILE = "localai_mlx_hostfile.json"
GRACE_SECONDS = 3.0


@app.command("mlx-distributed")
def mlx_distributed(
    hostfile: Annotated[
        Path, typer.Option(envvar="MLX_DISTRIBUTED_HOSTFILE", help="Addresses of all ranks, in rank order.")
    ],
    rank: Annotated[int, typer.Option(envvar="MLX_RANK", min=0, help="Which entry of the hostfile this is.")],
    backend: Annotated[
        str, typer.Option(envvar="MLX_DISTRIBUTED_BACKEND", help=f"{', '.join(catalog.by_hand())}: how tensors travel.")
    ] = catalog.by_hand()[0],
    addr: Annotated[
        str, typer.Option(envvar="MLX_DISTRIBUTED_ADDR", help="Rank 0: where the API listens.")
    ] = "localhost:50051",
    coordinator: Annotated[
        str | None,
        typer.Option(
            envvar="MLX_JACCL_COORDINATOR", help=f"{catalog.over_rdma().name}: host:port where the ranks meet."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Rank 0: serve this model to OpenAI clients; without it, LocalAI says which.")
    ] = None,
    start_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for the other ranks; 0: for ever.")
    ] = 600.0,
    threads: Annotated[int | None, typer.Option(help="CPU threads of this rank.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let models of this machine's store run their own Python.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run one rank of a hostfile. Rank 0 leads and serves; the others wait for it, in any order.

    Example: chorus worker mlx-distributed --hostfile hosts.json --rank 1
    """
    logs.setup(log_level)
    if backend not in BACKENDS:
        fail(f"--backend {backend}: expected one of {', '.join(BACKENDS)}")
    hosts = read_hosts(hostfile, rank)
    try:
        addresses = rank_addresses(hosts.hosts)
    except NoAddress as error:
        fail(str(error))
    transport = BACKENDS[backend]
    if rank == 0 and model is None:
        from chorus.cli.localai import lead  # it brings the whole LocalAI front end

        lead(addr, backend, hostfile, coordinator, trust_remote_code=trust_remote_code)
    elif rank == 0 and model is not None:
        lead_with_api(
            model, addresses, transport, addr, coordinator, hosts, start_timeout, threads, trust_remote_code, log_level
        )
    else:
        follow(addresses, rank, start_timeout or None, threads, trust_remote_code, log_level, dict(hosts.envs))


@app.command("p2p-mlx")
def p2p_mlx(
    context: typer.Context,
    token: Annotated[
        str | None, typer.Option(envvar="TOKEN", help="The cluster's token (chorus token new); - reads it.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="Read the token from this file.")] = None,
    mlx_listen_port: Annotated[
        int, typer.Option(envvar="MLX_LISTEN_PORT", min=1, max=65535, help="Port of this node's rank.")
    ] = 5555,
    mlx_backend: Annotated[
        str,
        typer.Option(envvar="MLX_DISTRIBUTED_BACKEND", help=f"{catalog.offer(catalog.by_hand())}: how tensors travel."),
    ] = catalog.by_hand()[0],
    peer: Annotated[list[str] | None, typer.Option(help="host[:port] of the server, where it is not found.")] = None,
    listen: Annotated[str, typer.Option(help="Where to let the cluster in.")] = f"0.0.0.0:{DOOR_PORT}",
    name: Annotated[str | None, typer.Option(help="This node's name (its host name).")] = None,
    log_dir: Annotated[Path, typer.Option(help="Folder for the log of this node.")] = Path("logs"),
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Find the server and be one of its ranks: rank 0 is `chorus serve MODEL --cluster`, the rest go by node id.

    Example: chorus worker p2p-mlx --token-file cluster.token
    """
    logs.setup(log_level)
    if mlx_backend not in BACKENDS:
        fail(f"--mlx-backend {mlx_backend}: expected one of {', '.join(BACKENDS)}")
    try:
        proof = read_token(context, token, token_file, needed=True)
        if proof is None:
            fail("there is no token: set TOKEN, or give --token-file FILE (chorus token new makes one)")
        options = agent_options(proof, peer or [], listen, name, log_dir, True, mlx_listen_port, BACKENDS[mlx_backend])
    except (BadToken, BadName, ValueError, OSError) as error:
        fail(str(error))
    run_agent(options)


def read_hosts(hostfile: Path, rank: int) -> Hostfile:
    if hostfile.name == TUNNELS_FILE:
        fail(
            f"{hostfile} holds the tunnels of LocalAI's own p2p and not rank 0, so no group can form from it: "
            "use `chorus worker p2p-mlx`, or write a hostfile with the addresses of all ranks"
        )
    try:
        hosts = parse_hostfile(read_file(hostfile))
    except (ConfigError, HostfileError) as error:
        fail(f"{hostfile}: {error}".replace(f"{hostfile}: {hostfile}", str(hostfile)))
    if rank >= len(hosts.hosts):
        fail(f"{hostfile} has {len(hosts.hosts)} hosts, so there is no rank {rank}: ranks count from 0")
    return hosts


def follow(
    addresses: tuple[str, ...],
    rank: int,
    start_timeout: float | None,
    threads: int | None,
    trust_remote_code: bool,
    log_level: str,
    environment: dict[str, str] | None = None,
) -> None:
    """Keep one following rank alive until stopped; fails when others do not come in time."""
    if not is_private(addresses[rank]):
        console.print(
            "[yellow]warning:[/] no token, so this link is plain text: whoever reaches the port can run models of "
            "this machine's store, and nothing else; `chorus join` has TLS"
        )
    try:
        asyncio.run(_follow(addresses, rank, start_timeout, threads, trust_remote_code, log_level, environment or {}))
    except (RanksMissing, _Ended) as error:
        fail(str(error))


class _Ended(Exception):
    pass


async def _follow(
    addresses: tuple[str, ...],
    rank: int,
    start_timeout: float | None,
    threads: int | None,
    trust_remote_code: bool,
    log_level: str,
    environment: dict[str, str],
) -> None:
    command = ["-m", "chorus.rank", "--rank", str(rank), "--listen", addresses[rank], "--own-store", "--insecure"]
    command += ["--log-level", log_level, *(["--threads", str(threads)] if threads else [])]
    command += ["--trust-remote-code"] if trust_remote_code else []
    lifeline = Lifeline()
    group = Group("rank", [Program(f"rank {rank}", python(*command), environment)], lifeline, GRACE_SECONDS)
    others = {number: address for number, address in enumerate(addresses) if number != rank}
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    keeper = asyncio.create_task(_keep(group, rank, addresses[rank]))
    meeting = asyncio.create_task(wait_for_all(others, start_timeout))
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


async def _keep(group: Group, rank: int, address: str) -> None:
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
                raise _Ended(f"rank {rank} cannot start on {address}: its last log line says why")
            console.print(f"rank {rank} cannot start on {address} now: trying again in {pause:g} s")
        elif pause is None:
            raise _Ended(f"rank {rank} at {address} ended again and again, last with {describe_exit(code)}")
        else:
            console.print(f"rank {rank} ended with {describe_exit(code)}: starting it again")
        await asyncio.sleep(pause)
