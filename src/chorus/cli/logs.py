"""`chorus logs`: the logs of the nodes, read from here."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import grpc.aio
import typer

from chorus.cli.options import parse_peer
from chorus.cli.output import fail
from chorus.cli.own_server import find_own
from chorus.cli.up import on_first_host
from chorus.cluster import status as cluster_status
from chorus.cluster.coordinator.calls import agent_at, cannot_call
from chorus.messages.proto import agent_pb2 as wire

FOLLOW_SECONDS = 7 * 86400.0


def logs(
    node: Annotated[str | None, typer.Argument(help="Name of one node, or its host:port; all without it.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is added.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many of the last lines to show.")] = 50,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Of the cluster of this file, by SSH.")] = None,
) -> None:
    """Print the logs of the nodes; with several, each line says whose it is.

    Example: chorus logs -f mini2
    """
    if config:
        words = ["logs", *([node] if node else []), *(["--follow"] if follow else []), "--lines", str(lines)]
        on_first_host(config, words, FOLLOW_SECONDS)
        return
    chosen = find_nodes(node)
    try:
        asyncio.run(_print_all(chosen, follow, lines))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def find_nodes(name: str | None, port: int | None = None) -> dict[str, tuple[str, int]]:
    """Name and address of the nodes of what is served here; a host:port is taken as it is."""
    if name and ":" in name:
        return {name: parse_peer(name)}
    serving = find_own(port)
    found = cluster_status.read(Path(serving.folder) / cluster_status.FILE_NAME) if serving.over_nodes else None
    if found is None:
        fail("no cluster is served from this machine: start `chorus serve MODEL --cluster`, or give a node's host:port")
    nodes = {node["name"]: parse_peer(node["address"]) for node in found["nodes"]}
    if name is None:
        return nodes
    if name not in nodes:
        fail(f"there is no node {name}; there are: {', '.join(sorted(nodes)) or 'none'}")
    return {name: nodes[name]}


async def _print_all(nodes: dict[str, tuple[str, int]], follow: bool, lines: int) -> None:
    named = len(nodes) > 1
    await asyncio.gather(*(_print(name if named else None, where, follow, lines) for name, where in nodes.items()))


async def _print(name: str | None, address: tuple[str, int], follow: bool, lines: int) -> None:
    rest = b""
    async with agent_at(address) as agent:
        try:
            async for chunk in agent.Logs(wire.LogsRequest(lines=lines, follow=follow)):
                *whole, rest = (rest + chunk.data).split(b"\n")
                for line in whole:
                    _write(name, line)
        except grpc.aio.AioRpcError as error:
            raise cannot_call(name or address[0], error) from None
    if rest:
        _write(name, rest)


def _write(name: str | None, line: bytes) -> None:
    prefix = f"{name}: ".encode() if name else b""
    sys.stdout.buffer.write(prefix + line + b"\n")
    sys.stdout.buffer.flush()
