"""`chorus serve`: one model on this machine, on an OpenAI endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Annotated, Any

import grpc
import grpc.aio
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

from chorus.api.auth import refusal_to_listen
from chorus.api.keyfile import KeyFileError, default_key_file, load_keys
from chorus.api.settings import ApiSettings, Limits, SamplingDefaults
from chorus.cli.output import console, fail
from chorus.cli.processes import CannotLaunch, front_end_program, rank_addresses, rank_programs
from chorus.cli.up_options import environment_of
from chorus.cluster.config import ConfigError, Settings, load_settings, use_cache_dir
from chorus.cluster.supervisor import GaveUp, Group, Supervisor
from chorus.engine.spec import EngineSpec
from chorus.models import LocalModel, ModelError, resolve
from chorus.models import Progress as PullProgress
from chorus.platform import cores, logs, mpi
from chorus.platform.lifeline import Lifeline
from chorus.proto import engine_pb2 as wire
from chorus.proto import engine_pb2_grpc

ENGINE_GRACE_SECONDS = 5.0


def serve(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a Hugging Face id, a .gguf file or a catalog name.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Settings file (YAML or JSON).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; loopback unless told otherwise.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (8100).")] = None,
    ranks: Annotated[int | None, typer.Option(help="Processes to spread the model over.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Layers of each rank, rank 0 (the last layers) first, e.g. 20,7,3.")
    ] = None,
    parallel: Annotated[
        str | None, typer.Option(help="pipeline: runs of layers; tensor: slices of all layers.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Tensor parallel: each rank's share, rank 0 first, e.g. 2,1.")
    ] = None,
    transport: Annotated[str | None, typer.Option(help="How ranks exchange tensors: auto, grpc, ring or mpi.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads per rank (cores divided by ranks).")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto, float32, bfloat16, float16 or stored (auto: what is fastest here).")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Serve a shorter context than the model's.")] = None,
    temperature: Annotated[float | None, typer.Option(help="For requests that give none.")] = None,
    top_p: Annotated[float | None, typer.Option(help="For requests that give none.")] = None,
    top_k: Annotated[int | None, typer.Option(help="For requests that give none.")] = None,
    alias: Annotated[list[str] | None, typer.Option(help="Another name for the model; may be repeated.")] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Over the nodes that joined this cluster.")] = False,
    peer: Annotated[
        list[str] | None, typer.Option(help="With --cluster: host[:port] of a node's agent; may be repeated.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="With --cluster: wait for so many nodes besides this one.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for every rank; may be repeated.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback address without a key.")] = False,
    step_log: Annotated[Path | None, typer.Option(help="Write one JSON line per engine step to this file.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON lines.")] = False,
) -> None:
    """Serve a model on an OpenAI-compatible endpoint until stopped (Ctrl-C).

    Example: chorus serve smollm2-135m --port 8100

    Example: chorus serve smollm2-135m --cluster --peer 192.168.1.20
    """
    if (peer or nodes) and not cluster:
        fail("--peer and --nodes go with --cluster")
    overrides = {
        "model": model,
        "api": {"host": host, "port": port, "aliases": tuple(alias) if alias else None},
        "engine": {
            "ranks": ranks,
            "split": None if cluster else split,
            "parallel": parallel,
            "weights": weights,
            "transport": transport,
            "threads": threads,
            "dtype": dtype,
            "context": context,
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
    try:
        keys = load_keys(default_key_file())
    except KeyFileError as error:
        fail(str(error))
    if refusal := refusal_to_listen(settings.api.host, keys, insecure):
        fail(refusal)
    with contextlib.closing(_listen(settings.api.host, settings.api.port)) as listener:
        local = _find_model(settings.model)
        if cluster:
            _serve_over_nodes(settings, local, listener, split, peer or [], nodes, env or [])
            return
        try:
            os.environ.update(environment_of(env or []))
            asyncio.run(_serve(settings, local, listener))
        except (GaveUp, CannotLaunch, ValueError) as error:
            fail(str(error))


def _serve_over_nodes(
    settings: Settings,
    model: LocalModel,
    listener: socket.socket,
    split: str | None,
    peers: list[str],
    nodes: int | None,
    env: list[str],
) -> None:
    from chorus.cli.up_coordinator import DEFAULT_LISTEN, cluster_options, run_over_nodes, with_split

    try:
        divided = with_split(settings, split) if split else settings
        options = cluster_options(divided, peers, nodes, env, DEFAULT_LISTEN, Path("logs"))
    except ValueError as error:
        fail(str(error))
    run_over_nodes(divided, model, listener, options)


def _listen(host: str, port: int) -> socket.socket:
    """The supervisor owns the listening socket: a front end that restarts loses no connection."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        fail(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port")


def _find_model(name: str) -> LocalModel:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"finding {name}", total=None)

        def report(progress: PullProgress) -> None:
            bar.update(task, description=progress.label, completed=progress.done, total=progress.total)

        try:
            return resolve(name, progress=report)
        except ModelError as error:
            fail(str(error))


async def _serve(settings: Settings, model: LocalModel, listener: socket.socket) -> None:
    lifeline = Lifeline()
    folder = lifeline.path.parent
    address = engine_address(folder)
    spec = engine_spec(settings, model, folder, rank_addresses(folder, settings.engine.ranks))
    front_end = front_end_program(api_settings(settings, model, address, listener), folder)
    supervisor = Supervisor(
        Group("ranks", rank_programs(spec, folder), lifeline, ENGINE_GRACE_SECONDS),
        Group("front end", [front_end], lifeline, settings.api.shutdown_grace_seconds + 2),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    announcer: list[asyncio.Task[None]] = []
    try:
        await supervisor.run(lambda: announcer.append(asyncio.create_task(_announce(address, model, url))))
    finally:
        for task in announcer:
            task.cancel()
        await asyncio.gather(*announcer, return_exceptions=True)
        lifeline.cut()


def engine_address(folder: Path) -> str:
    return f"unix:{folder}/engine.sock"


def engine_spec(settings: Settings, model: LocalModel, folder: Path, ranks: tuple[str, ...]) -> EngineSpec:
    engine = settings.engine
    return EngineSpec(
        address=engine_address(folder),
        model_path=model.path,
        ranks=ranks,
        parallel=engine.parallel,
        split=engine.split,
        weights=engine.weights,
        transport=choose_transport(engine.transport, engine.parallel),
        start_timeout_seconds=engine.start_timeout_seconds,
        step_timeout_seconds=engine.step_timeout_seconds,
        threads=engine.threads or cores.threads_per_rank(cores.usable_cores(), engine.ranks),
        dtype=engine.dtype,
        memory_fraction=engine.memory_fraction,
        context=engine.context,
        max_batch=engine.max_batch,
        max_queue=engine.max_queue,
        prefill_chunk=engine.prefill_chunk,
        trust_remote_code=engine.trust_remote_code,
        failure_file=folder / "failure",
        step_log=engine.step_log and engine.step_log.resolve(),
        log_level=settings.log.level,
        log_json=settings.log.json_lines,
    )


def choose_transport(wanted: str, parallel: str) -> Any:
    """`auto` on one machine: gRPC between stages; for tensor parallelism mpi where it is installed, else ring."""
    if wanted != "auto":
        return wanted
    if parallel == "pipeline":
        return "grpc"
    return "mpi" if mpi.launcher() and mpi.library() else "ring"


def api_settings(settings: Settings, model: LocalModel, address: str, listener: socket.socket) -> ApiSettings:
    api = settings.api
    return ApiSettings(
        host=api.host,
        port=listener.getsockname()[1],
        socket_fd=listener.fileno(),
        engine_address=address,
        model_id=model.id,
        model_name=model.id.rpartition("/")[2],
        aliases=tuple(dict.fromkeys((model.name, *api.aliases))),
        model_path=model.path,
        keys=load_keys(default_key_file()),
        sampling=SamplingDefaults(**settings.sampling.model_dump(), max_tokens=api.max_tokens),
        limits=Limits(
            max_body_bytes=api.max_body_bytes,
            request_timeout_seconds=api.request_timeout_seconds,
            shutdown_grace_seconds=api.shutdown_grace_seconds,
        ),
        trust_remote_code=settings.engine.trust_remote_code,
        log_level=settings.log.level,
        log_json=settings.log.json_lines,
        configuration=settings.model_dump(mode="json", exclude={"log"}),
    )


async def _announce(address: str, model: LocalModel, url: str) -> None:
    """Show the load until the model is ready, then where it is."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    async with grpc.aio.insecure_channel(address) as channel:
        engine = engine_pb2_grpc.EngineStub(channel)
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting the engine", total=1.0)
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    seen = await engine.Describe(wire.DescribeRequest(), timeout=2.0, wait_for_ready=True)
                    bar.update(task, description=seen.detail, completed=seen.progress)
                    if seen.state == wire.READY:
                        break
                await asyncio.sleep(0.1)
    console.print(f"[bold green]ready[/]  {model.id}  at  [bold]{url}/v1[/]  (Ctrl-C stops it)")
