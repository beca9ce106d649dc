"""`chorus worker`: ranks started by hand, flag for flag as LocalAI's users know them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chorus.cli.join import agent_options
from chorus.cli.options import read_token
from chorus.cli.output import fail
from chorus.cluster.agent.process import run_agent
from chorus.config.hostfile import BACKENDS
from chorus.deploy.by_hand import START_SECONDS, follow, lead_with_api, read_hosts
from chorus.deploy.rendezvous import rank_addresses
from chorus.platform.process import logs
from chorus.security.node_folder import DOOR_PORT
from chorus.transport import catalog

app = typer.Typer(help="Run one rank by hand.", no_args_is_help=True)


@app.command("mlx-distributed")
def mlx_distributed(
    hostfile: Annotated[
        Path, typer.Option(envvar="MLX_DISTRIBUTED_HOSTFILE", help="Addresses of all ranks, in rank order.")
    ],
    rank: Annotated[int, typer.Option(envvar="MLX_RANK", min=0, help="Which entry of the hostfile this is.")],
    backend: Annotated[
        str, typer.Option(envvar="MLX_DISTRIBUTED_BACKEND", help=f"{', '.join(catalog.by_hand())}: how tensors travel.")
    ] = catalog.by_hand()[0],
    parallel: Annotated[
        str | None,
        typer.Option(
            help="Rank 0 with --model: pipeline (runs of layers) or tensor (slices of all layers), which "
            f"{catalog.over_rdma().name} means without it."
        ),
    ] = None,
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
    ] = START_SECONDS,
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
    addresses = rank_addresses(hosts.hosts)
    transport = BACKENDS[backend]
    if rank == 0 and model is None:
        from chorus.localai.launch import lead  # the whole LocalAI front end, which other ranks need not wait for

        lead(addr, backend, hostfile, coordinator, trust_remote_code=trust_remote_code)
    elif rank == 0 and model is not None:
        lead_with_api(
            model,
            addresses,
            transport,
            parallel,
            addr,
            coordinator,
            hosts,
            start_timeout,
            threads,
            trust_remote_code,
            log_level,
        )
    else:
        follow(addresses, rank, start_timeout, threads, trust_remote_code, log_level, dict(hosts.envs))


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
    log_dir: Annotated[
        Path | None, typer.Option(help="Folder for this node's log (logs; on a Mac ~/Library/Logs/Chorus).")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Find the server and be one of its ranks: rank 0 is `chorus serve MODEL --cluster`, the rest go by node id.

    Example: chorus worker p2p-mlx --token-file cluster.token
    """
    logs.setup(log_level)
    if mlx_backend not in BACKENDS:
        fail(f"--mlx-backend {mlx_backend}: expected one of {', '.join(BACKENDS)}")
    proof = read_token(context, token, token_file, needed=True)
    if proof is None:
        fail("there is no token: set TOKEN, or give --token-file FILE (chorus token new makes one)")
    run_agent(agent_options(proof, peer or [], listen, name, log_dir, True, mlx_listen_port, BACKENDS[mlx_backend]))
