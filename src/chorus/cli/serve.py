"""`chorus serve`: one model on this machine, on an OpenAI endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from chorus.cli.options import environment_of
from chorus.cli.output import fail
from chorus.cluster import status
from chorus.config.file import ConfigError
from chorus.config.settings import Settings
from chorus.config.sources import load_settings, use_cache_dir
from chorus.deploy.front_end import (
    ENGINE_GRACE_SECONDS,
    Access,
    api_settings,
    find_access,
    find_model,
    listen,
    run_announced,
)
from chorus.deploy.local_plan import local_plan
from chorus.deploy.preshard import with_own_division
from chorus.deploy.programs import (
    CannotLaunch,
    engine_address,
    engine_spec,
    front_end_program,
    rank_addresses,
    rank_programs,
)
from chorus.deploy.supervisor import GaveUp, Group, Supervisor
from chorus.models import LocalModel, ModelError
from chorus.platform.files import write_if_possible
from chorus.platform.process import logs
from chorus.platform.process.lifeline import Lifeline
from chorus.transport import catalog


def serve(
    model: Annotated[
        str | None,
        typer.Argument(help="A folder (presharded or not), a Hugging Face id, a .gguf file or a catalog name."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Settings file (YAML or JSON).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; loopback unless told otherwise.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (8100).")] = None,
    ranks: Annotated[int | None, typer.Option(help="Processes to spread the model over.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Layers of each stage, rank 0's (the last layers) first, e.g. 20,7,3.")
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(help="pipeline: runs of layers; tensor: slices of all layers; hybrid: stages of several ranks."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Tensor: each rank's share, rank 0 first, e.g. 2,1; hybrid: within each stage.")
    ] = None,
    transport: Annotated[
        str | None, typer.Option(help=f"How ranks exchange tensors: {catalog.help_for('machine')}.")
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(help=f"Pack activations sent over {catalog.packing()}: auto (where a link is slow), off or on."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads per rank (cores divided by ranks).")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto, float32, bfloat16, float16 or stored (auto: what is fastest here).")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Serve a shorter context than the model's.")] = None,
    temperature: Annotated[float | None, typer.Option(help="For requests that give none.")] = None,
    top_p: Annotated[float | None, typer.Option(help="For requests that give none.")] = None,
    top_k: Annotated[int | None, typer.Option(help="For requests that give none.")] = None,
    alias: Annotated[list[str] | None, typer.Option(help="Another name for the model; may be repeated.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another name that clients call this server by; may be repeated.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Web pages from here may call the API (http://host:port); repeatable.")
    ] = None,
    tool_parser: Annotated[
        str | None, typer.Option(help="How the model writes tool calls, where its template does not tell.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the Python code that the model's folder brings.")
    ] = False,
    cluster: Annotated[bool, typer.Option("--cluster", help="Over the nodes that joined this cluster.")] = False,
    peer: Annotated[
        list[str] | None, typer.Option(help="With --cluster: host[:port] of a node's agent; may be repeated.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="With --cluster: wait for so many nodes besides this one.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for every rank; may be repeated.")] = None,
    https: Annotated[bool, typer.Option("--https", help="HTTPS, with a certificate of this cluster's own.")] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="HTTPS, with this certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of --tls-cert (PEM).")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback address without a key.")] = False,
    step_log: Annotated[Path | None, typer.Option(help="Write one JSON line per engine step to this file.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON lines.")] = False,
) -> None:
    """Serve a model on an OpenAI-compatible endpoint until stopped (Ctrl-C).

    Example: chorus serve smollm2-135m --port 8100

    Example: chorus serve smollm2-135m --parallel hybrid --split 20,10 --weights 2,1 (4 ranks, over mpi)

    Example: chorus serve smollm2-135m --cluster --peer 192.168.1.20
    """
    if (peer or nodes) and not cluster:
        fail("--peer and --nodes go with --cluster")
    overrides = {
        "model": model,
        "api": {
            "host": host,
            "port": port,
            "aliases": tuple(alias) if alias else None,
            "hosts": tuple(allow_host) if allow_host else None,
            "cors_origins": tuple(cors_origin) if cors_origin else None,
            "https": https or None,
            "tls_certificate": tls_cert,
            "tls_key": tls_key,
            "tool_parser": tool_parser,
        },
        "engine": {
            "ranks": ranks,
            "split": None if cluster else split,
            "parallel": parallel,
            "weights": weights,
            "transport": transport,
            "compression": compression,
            "threads": threads,
            "dtype": dtype,
            "context": context,
            "trust_remote_code": trust_remote_code or None,
            "step_log": step_log,
        },
        "sampling": {"temperature": temperature, "top_p": top_p, "top_k": top_k},
        "log": {"level": log_level, "json_lines": log_json or None},
    }
    try:
        settings = load_settings(config, overrides)
    except ConfigError as error:
        fail(str(error))
    logs.setup(settings.log.level, settings.log.json_lines)
    use_cache_dir(settings)
    access = find_access(settings, insecure)
    with contextlib.closing(listen(settings.api.host, settings.api.port)) as listener:
        local = find_model(settings.model, for_nodes=cluster)
        if settings.engine.parallel == "single" and (cluster or settings.engine.ranks > 1):
            fail("parallel single means one rank: leave it out, or leave out the ranks")
        if cluster:
            _serve_over_nodes(settings, local, listener, access, split, peer or [], nodes, env or [])
            return
        try:
            settings = with_own_division(settings, local)
            os.environ.update(environment_of(env or []))
            asyncio.run(_serve(settings, local, listener, access))
        except (GaveUp, CannotLaunch, ModelError, ValueError) as error:
            fail(str(error))


def _serve_over_nodes(
    settings: Settings,
    model: LocalModel,
    listener: socket.socket,
    access: Access,
    split: str | None,
    peers: list[str],
    nodes: int | None,
    env: list[str],
) -> None:
    from chorus.cli.serve_cluster import DEFAULT_LISTEN, cluster_options, run_over_nodes, with_split

    try:
        divided = with_split(settings, split) if split else settings
        options = cluster_options(divided, peers, nodes, env, DEFAULT_LISTEN, Path("logs"))
    except ValueError as error:
        fail(str(error))
    run_over_nodes(divided, model, listener, access, options)


async def _serve(settings: Settings, model: LocalModel, listener: socket.socket, access: Access) -> None:
    lifeline = Lifeline()
    folder = lifeline.path.parent
    address = engine_address(folder)
    made = local_plan(settings, model)
    write_if_possible(folder / status.FILE_NAME, json.dumps({"plan": made.shown}).encode(), "the plan is not shown")
    spec = engine_spec(settings, model, folder, rank_addresses(folder, settings.engine.ranks))
    spec = spec.model_copy(update={"policies": made.policies})
    front_end = front_end_program(api_settings(settings, model, address, listener, access), folder)
    supervisor = Supervisor(
        Group("ranks", rank_programs(spec), lifeline, ENGINE_GRACE_SECONDS, settings.watch),
        Group("front end", [front_end], lifeline, settings.api.shutdown_grace_seconds + 2, settings.watch),
    )
    try:
        async with access.kept():
            await run_announced(supervisor, address, model, access.url(listener))
    finally:
        lifeline.cut()
