"""`chorus serve --cluster` as a process of its own: what `chorus up` runs on the first host."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Annotated

import typer

from chorus.cli.options import environment_of, parse_peer
from chorus.cli.output import console, fail
from chorus.cluster import status
from chorus.cluster.coordinator.record import recorded
from chorus.cluster.logs_copy import copied_output
from chorus.config.file import ConfigError
from chorus.config.settings import Settings
from chorus.config.sources import load_settings, use_cache_dir
from chorus.deploy.front_end import ENGINE_GRACE_SECONDS, Access, api_settings, find_access, find_model, run_announced
from chorus.deploy.front_end import listen as listen_for_clients
from chorus.deploy.nodes.serve import ClusterOptions, ranks_on_nodes
from chorus.deploy.preshard import with_own_division
from chorus.deploy.programs import CannotLaunch, engine_address, engine_spec, front_end_program
from chorus.deploy.supervisor import GaveUp, Group, Supervisor
from chorus.models import LocalModel, ModelError
from chorus.platform.process import logs
from chorus.platform.process.lifeline import Lifeline
from chorus.platform.process.output import RotatingLog
from chorus.security.authority import NoAuthority
from chorus.security.node_folder import DOOR_PORT, state_dir
from chorus.transport import catalog

DEFAULT_LISTEN = f"0.0.0.0:{DOOR_PORT}"


def coordinate(
    model: Annotated[str | None, typer.Argument(help="A folder, a Hugging Face id or a catalog name.")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Settings file (YAML or JSON).")] = None,
    host: Annotated[str | None, typer.Option(help="Address of the API.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the API (8100).")] = None,
    split: Annotated[str | None, typer.Option(help="Layers of each rank, rank 0 first, e.g. 20,7,3.")] = None,
    transport: Annotated[str | None, typer.Option(help=f"{catalog.help_for('cluster')}.")] = None,
    compression: Annotated[
        str | None, typer.Option(help=f"Pack activations over {catalog.packing()}: auto, off or on.")
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(help="host:port of a node's agent; may be repeated.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Wait for so many nodes besides this one.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for every rank; may be repeated.")] = None,
    listen: Annotated[str, typer.Option(help="Where agents may call in.")] = DEFAULT_LISTEN,
    log_dir: Annotated[Path, typer.Option(help="Folder for the log of this node.")] = Path("logs"),
    start_timeout: Annotated[float | None, typer.Option(help="Seconds to wait for nodes and ranks.")] = None,
    leader_port: Annotated[int | None, typer.Option(help="Control port of rank 0 (any free one).")] = None,
    log_file: Annotated[Path | None, typer.Option(help="Write everything to this file too, rotated.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback API without a key.")] = False,
) -> None:
    """Serve a model from this machine and the nodes that joined its cluster.

    Example: chorus serve smollm2-135m --cluster --peer 192.168.1.20
    """
    overrides = {
        "model": model,
        "api": {"host": host, "port": port},
        "engine": {"transport": transport, "compression": compression, "start_timeout_seconds": start_timeout},
    }
    try:
        settings = load_settings(config, overrides)
        if split:
            settings = with_split(settings, split)
        options = cluster_options(settings, peer or [], nodes, env or [], listen, log_dir, leader_port)
    except (ConfigError, ValueError) as error:
        fail(str(error))
    with copied_output(RotatingLog(log_file)) if log_file else contextlib.nullcontext():
        logs.setup(settings.log.level, settings.log.json_lines)
        use_cache_dir(settings)
        access = find_access(settings, insecure)
        with contextlib.closing(listen_for_clients(settings.api.host, settings.api.port)) as listener:
            run_over_nodes(settings, find_model(settings.model, for_nodes=True), listener, access, options)


def cluster_options(
    settings: Settings,
    peers: list[str],
    nodes: int | None,
    env: list[str],
    listen: str,
    log_dir: Path,
    leader_port: int | None = None,
) -> ClusterOptions:
    host, port = parse_peer(listen)
    return ClusterOptions(
        peers=tuple(parse_peer(text) for text in peers),
        nodes=nodes,
        names=tuple(device.device_id for device in settings.devices[1:]),
        leader_port=leader_port,
        environment={**settings.cluster.env, **environment_of(env)},
        host=host,
        port=port,
        logs=log_dir,
        start_timeout_seconds=settings.engine.start_timeout_seconds,
        nodes_choose_transport=settings.engine.transport == catalog.AUTO,
        timing=settings.watch,
    )


def run_over_nodes(
    settings: Settings,
    model: LocalModel,
    listener: socket.socket,
    access: Access,
    options: ClusterOptions,
) -> None:
    """Until stopped; fails with one line."""
    try:
        asyncio.run(_run(with_own_division(settings, model), model, listener, access, options))
    except (GaveUp, CannotLaunch, NoAuthority, ModelError, OSError) as error:
        fail(str(error))


async def _run(
    settings: Settings,
    model: LocalModel,
    listener: socket.socket,
    access: Access,
    options: ClusterOptions,
) -> None:
    lifeline = Lifeline()
    folder = lifeline.path.parent
    address = engine_address(folder)
    # One rank to a machine: none of them shares its cores with another.
    alone = settings.model_copy(update={"engine": settings.engine.model_copy(update={"ranks": 1})})
    front_end = front_end_program(api_settings(settings, model, address, listener, access), folder)
    shown = ""

    def report(detail: str) -> None:
        nonlocal shown
        if detail != shown:
            shown = detail
            console.print(f"[dim]{detail}[/]")

    url = access.url(listener)
    try:
        async with ranks_on_nodes(
            model,
            settings.sharding,
            lambda ranks: engine_spec(alone, model, folder, ranks),
            lifeline,
            ENGINE_GRACE_SECONDS,
            options,
            report,
        ) as ranks:
            grace = settings.api.shutdown_grace_seconds + 2
            supervisor = Supervisor(ranks, Group("front end", [front_end], lifeline, grace, settings.watch))
            with recorded(state_dir(), url, folder / status.FILE_NAME, model.name):
                async with access.kept():
                    await run_announced(supervisor, address, model, url)
    finally:
        lifeline.cut()


def with_split(settings: Settings, split: str) -> Settings:
    """The number of nodes is not known yet, so the split is taken as it is and checked when they are."""
    try:
        counts = tuple(int(part) for part in split.split(","))
    except ValueError:
        raise ValueError(f"--split {split}: must be numbers of layers separated by commas, e.g. 20,7,3") from None
    engine = settings.engine.model_copy(update={"split": counts, "ranks": len(counts)})
    return settings.model_copy(update={"engine": engine})


if __name__ == "__main__":
    typer.run(coordinate)
