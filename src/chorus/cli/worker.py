"""`chorus worker`: ranks started by hand, flag for flag as LocalAI's users know them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from chorus.cli.join import agent_options
from chorus.cli.options import read_token
from chorus.cli.output import fail
from chorus.cluster.agent.process import run_agent
from chorus.config.hostfile import BACKENDS
from chorus.config.sources import load_told, use_cache_dir
from chorus.deploy.front_end import is_alone
from chorus.deploy.hostfile.serve import FOR_EVER_SECONDS, find_rank, follow, lead_with_api
from chorus.platform.process import logs
from chorus.security.node_folder import DOOR_PORT
from chorus.transport import catalog

app = typer.Typer(help="Run one rank by hand.", no_args_is_help=True)


@app.command("mlx-distributed")
def mlx_distributed(
    hostfile: Annotated[
        Path | None, typer.Option(help="Addresses of all ranks, in rank order (MLX_DISTRIBUTED_HOSTFILE).")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Which entry of the hostfile this is, from 0 (MLX_RANK).")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Settings file (YAML or JSON).")] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            "--transport",
            help=f"{', '.join(catalog.by_hand())}: how tensors travel (MLX_DISTRIBUTED_BACKEND, "
            f"{catalog.by_hand()[0]}).",
        ),
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            help="Rank 0: pipeline (runs of layers) or tensor (slices of all layers), which "
            f"{catalog.over_rdma().name} means without it."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Rank 0: layers of each rank, its own (the last ones) first, e.g. 20,7,3.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Rank 0, tensor: each rank's share, its own first, e.g. 2,1.")
    ] = None,
    addr: Annotated[
        str | None, typer.Option(help="Rank 0: where it answers (MLX_DISTRIBUTED_ADDR, localhost:50051).")
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            help=f"Rank 0, {catalog.over_rdma().name}: host:port where the ranks meet (MLX_JACCL_COORDINATOR)."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Rank 0: serve these models to OpenAI clients; without one, LocalAI says which. Others: a folder of "
            "this machine, or any model, that rank 0 may ask for besides those of the store; may be repeated."
        ),
    ] = None,
    start_timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to wait for the other ranks (rank 0: 600; others: for ever); 0: for ever."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of this rank.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Rank 0: auto, float32, bfloat16, float16 or stored, on every rank.")
    ] = None,
    cpu_products: Annotated[
        str | None, typer.Option(help="Rank 0: what CPUs multiply with: auto, packed, float32 or blas, on every rank.")
    ] = None,
    pack: Annotated[
        int | None, typer.Option(help="Rank 0: on CPUs, pack a model that is not quantized to 8 or 4 bits.")
    ] = None,
    kv_bits: Annotated[int | None, typer.Option(help="Rank 0: keys and values in 8 or 4 bits, on every rank.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Rank 0: allow a non-loopback --addr without a key.")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let models of this machine's store run their own Python.")
    ] = False,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
) -> None:
    """Run one rank of a hostfile. Rank 0 leads and serves; the others wait for it, in any order.

    Everything else that can be set is read from the settings, as in `chorus serve`.

    Example: chorus worker mlx-distributed --hostfile hosts.json --rank 1
    """
    if backend is not None and backend not in BACKENDS:
        fail(f"--backend {backend}: expected one of {', '.join(BACKENDS)}")
    engine = {
        "transport": BACKENDS[backend] if backend else None,
        "parallel": parallel,
        "split": split,
        "weights": weights,
        "threads": threads,
        "dtype": dtype,
        "cpu_products": cpu_products,
        "pack": pack,
        "kv_bits": kv_bits,
        "trust_remote_code": trust_remote_code or None,
        "start_timeout_seconds": start_timeout if start_timeout is None else start_timeout or FOR_EVER_SECONDS,
    }
    place = {
        "hostfile": str(hostfile) if hostfile else None,
        "rank": rank,
        "address": addr,
        "coordinator": coordinator,
    }
    overrides = {"model": model[0] if model else None, "engine": engine, "cluster": place, "log": {"level": log_level}}
    loaded = load_told(config, overrides)
    leads = loaded.settings.cluster.rank == 0
    if leads and model and len(model) > 1:  # to any other rank, they are folders that it has
        loaded = load_told(config, {**overrides, "model": None, "models": model})
    if not leads or is_alone(loaded.settings):
        loaded = replace(loaded, settings=loaded.settings.of_first)
    settings = loaded.settings
    logs.setup(settings.log.level, settings.log.json_lines)
    use_cache_dir(settings)
    hand = find_rank(loaded, model or ())
    if worker and hand.rank == 0:
        # What LocalAI adds for every rank but 0, and its p2p for rank 0 too: no machine's place is known there.
        fail(
            "a worker cannot be rank 0: that is the machine of LocalAI, and a worker's rank is its place in the "
            "hostfile: local-ai worker mlx-distributed --hostfile FILE --rank 1; instead of local-ai worker p2p-mlx, "
            "which gives every worker rank 0, use chorus worker p2p-mlx"
        )
    if hand.rank:
        follow(hand, start_timeout or None)
    elif hand.models:
        lead_with_api(hand, insecure)
    else:
        from chorus.localai.launch import lead  # the whole LocalAI front end, which other ranks need not wait for

        if config:
            os.environ["CHORUS_CONFIG"] = str(config.resolve())  # for every model that LocalAI loads
        flags = {**engine, "transport": hand.settings.engine.transport}
        lead(settings.cluster.address, None, hostfile, coordinator, insecure, engine=flags, rank=0)


@app.command("p2p-mlx")
def p2p_mlx(
    context: typer.Context,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=["LOCALAI_TOKEN", "LOCALAI_P2P_TOKEN", "TOKEN"],
            help="The cluster's token (chorus token new); - reads it.",
        ),
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
