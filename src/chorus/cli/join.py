"""`chorus join`: make this machine a node of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chorus.cli.options import parse_peer, read_token
from chorus.cli.output import console, fail
from chorus.cluster.agent.process import AgentOptions, run_agent
from chorus.config.sources import find_device, load_settings
from chorus.deploy.services import install_service, remove_service
from chorus.platform.process import logs
from chorus.platform.storage import paths
from chorus.security.identity import Identity
from chorus.security.node_folder import DOOR_PORT, check_name, own_name, state_dir
from chorus.security.token import Token


def join(
    context: typer.Context,
    token: Annotated[
        str | None,
        typer.Option(envvar="CHORUS_TOKEN", help="- reads the cluster's token; needed once.", show_envvar=True),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="Read the token from this file.")] = None,
    peer: Annotated[
        list[str] | None, typer.Option(help="host[:port] of the machine that made the token, where it is not found.")
    ] = None,
    listen: Annotated[str, typer.Option(help="Where to let the cluster in.")] = f"0.0.0.0:{DOOR_PORT}",
    name: Annotated[str | None, typer.Option(help="This node's name (its host name).")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Take name and port from this file.")] = None,
    device_id: Annotated[str | None, typer.Option(help="Which device of the file this machine is.")] = None,
    port: Annotated[int | None, typer.Option(help="Control port of this node's rank.")] = None,
    log_dir: Annotated[
        Path | None, typer.Option(help="Folder for this node's log (logs; on a Mac ~/Library/Logs/Chorus).")
    ] = None,
    announce: Annotated[bool, typer.Option(help="Tell the local network about this node.")] = True,
    install: Annotated[
        bool, typer.Option("--install", help="Start now and at every boot, as a service of this user.")
    ] = False,
    daemon: Annotated[
        bool, typer.Option("--daemon", help="On a Mac: install it for the time before anybody logs in too (asks sudo).")
    ] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="End that service and remove it again.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON lines.")] = False,
    ready_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Make this machine a node: it waits for its cluster, in any order, and runs ranks for it until stopped.

    Example: chorus join --token-file cluster.token --install
    """
    logs.setup(log_level, log_json)
    if device_id:
        _, device = find_device(load_settings(config), device_id)
        name, port = name or device.device_id, port or device.port
    if uninstall:
        remove_service(console.print)
        return
    if daemon and not install:
        fail("--daemon goes with --install")
    needed = Identity.find(state_dir() / "identity") is None
    proof = read_token(context, token, token_file, needed)
    options = agent_options(proof, peer or [], listen, name, log_dir, announce, port, ready_file=ready_file)
    if install:
        install_service(options, list(peer or []), listen, daemon, console.print)
        return
    run_agent(options)


def agent_options(
    token: Token | None,
    peers: list[str],
    listen: str,
    name: str | None,
    log_dir: Path | None,
    announce: bool,
    rank_port: int | None,
    backend: str = "",
    ready_file: Path | None = None,
) -> AgentOptions:
    host, port = parse_peer(listen)
    return AgentOptions(
        name=check_name(name or own_name()),
        state=state_dir(),
        logs=log_dir or paths.log_dir(),
        host=host,
        port=port,
        token=token,
        peers=tuple(parse_peer(text) for text in peers),
        announce=announce,
        rank_port=rank_port,
        backend=backend,
        ready_file=ready_file,
    )
