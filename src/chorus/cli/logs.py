"""`chorus logs`: the logs of the nodes and of the machine that leads them, read from here."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterable, Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import grpc.aio
import typer

from chorus.cli.options import parse_peer
from chorus.cli.output import fail, tell_problems
from chorus.cli.own_server import PortOption, find_own
from chorus.cluster import status as cluster_status
from chorus.cluster.coordinator.calls import agent_at, cannot_call
from chorus.cluster.logs import COORDINATOR, tail
from chorus.cluster.logs import follow as follow_file
from chorus.cluster.servers import Server
from chorus.errors import ChorusError
from chorus.messages.proto import agent_pb2 as wire


@dataclass(frozen=True)
class Source:
    """One log: a file here, or a node that reads out its own."""

    name: str
    file: str = ""
    address: tuple[str, int] | None = None
    state: Path | None = None
    """The state folder of its cluster; what `chorus up` starts has one of its own."""


def logs(
    node: Annotated[
        str | None,
        typer.Argument(help="Name of one node (its device id), its host:port, or coordinator; all without it."),
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is added.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many of the last lines to show.")] = 50,
    paths: Annotated[bool, typer.Option("--paths", help="Say where the files lie instead.")] = False,
    port: PortOption = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Of the cluster of this file, by SSH.")] = None,
) -> None:
    """Print the logs of the nodes and of the coordinator; with several, each line says whose it is.

    Example: chorus logs -f mini2

    Example: chorus logs -c chorus.yaml --paths
    """
    problems = {}
    with contextlib.suppress(KeyboardInterrupt):
        if config:
            problems = _over_ssh(config, node, follow, lines, paths)
        else:
            sources = find_sources(node, port)
            if paths:
                _print_paths({source.name: source.file or "the node does not say" for source in sources})
                return
            problems = asyncio.run(_print_all(sources, follow, lines))
    tell_problems(problems)
    if problems:
        raise typer.Exit(1)


def _over_ssh(config: Path, device: str | None, follow: bool, lines: int, paths: bool) -> dict[str, str]:
    from chorus.cli.up import log_files, read_logs  # SSH and what it needs take a while to import

    where = log_files(config, device)
    if paths:
        _print_paths(where)
        return {}
    named = len(where) > 1
    return read_logs(
        config, device, lines, follow, lambda name, line: _write(name if named else None, line.encode(errors="replace"))
    )


def _print_paths(files: dict[str, str]) -> None:
    wide = max(map(len, files), default=0)
    for name, file in files.items():
        typer.echo(f"{name:{wide}}  {file}")


def find_sources(name: str | None, port: int | None = None) -> list[Source]:
    """The logs of what is served here, or one of them; a host:port is taken as it is."""
    if name and ":" in name:
        return [Source(name, address=parse_peer(name))]
    server, found = over_nodes(port)
    nodes = [
        Source(node["name"], node.get("log_file") or "", parse_peer(node["address"]), Path(server.state))
        for node in found["nodes"]
    ]
    leads = Source(server.name or COORDINATOR, server.log_file or "")
    if name is None:
        return [leads, *nodes]
    meant = leads if name == COORDINATOR else next((each for each in (leads, *nodes) if each.name == name), None)
    if meant is None:
        fail(f"there is no node {name}; there are: {', '.join([leads.name, *sorted(node.name for node in nodes)])}")
    return [meant]


def find_node(name: str, port: int | None = None) -> tuple[str, tuple[str, int], Path | None]:
    """Name, address and state folder of a node of what is served here; a host:port is taken as it is."""
    (source,) = find_sources(name, port)
    if source.address is None:
        fail(f"{source.name} leads the others and cannot be taken out of work: end it with `chorus down`, or Ctrl-C")
    return source.name, source.address, source.state


def over_nodes(port: int | None) -> tuple[Server, dict[str, Any]]:
    """The server here that has nodes, and what it knows of them."""
    server = find_own(port)
    if server.name is None:
        fail(f"{server.model} at {server.url} has no nodes: what it prints is where it was started")
    found = cluster_status.read(Path(server.folder) / cluster_status.FILE_NAME)
    if found is None or not isinstance(found.get("nodes"), list):
        fail(f"{server.model} at {server.url} knows no nodes yet: try again when it does, or give a node's host:port")
    return server, found


async def _print_all(sources: list[Source], follow: bool, lines: int) -> dict[str, str]:
    named = len(sources) > 1

    async def one(source: Source) -> str:
        name = source.name if named else None
        reading: Awaitable[None] = (
            _print_node(name, source.address, source.state, follow, lines)
            if source.address
            else _print_file(name, Path(source.file), follow, lines)
        )
        try:
            await reading
        except ChorusError as error:
            return str(error)
        return ""

    problems = await asyncio.gather(*map(one, sources))
    return {source.name: problem for source, problem in zip(sources, problems, strict=True) if problem}


async def _print_file(name: str | None, file: Path, follow: bool, lines: int) -> None:
    text, position = tail(file, lines)
    for line in text.splitlines():
        _write(name, line)
    if not follow:
        return
    await _write_lines(name, follow_file(file, position))


async def _print_node(name: str | None, address: tuple[str, int], state: Path | None, follow: bool, lines: int) -> None:
    async with agent_at(address, state) as agent:
        chunks = agent.Logs(wire.LogsRequest(lines=lines, follow=follow))
        try:
            await _write_lines(name, (chunk.data async for chunk in chunks))
        except grpc.aio.AioRpcError as error:
            raise cannot_call(name or address[0], error) from None


async def _write_lines(name: str | None, pieces: AsyncIterable[bytes]) -> None:
    """Line by line, however they were cut; the last one may have no end."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            _write(name, line)
    if rest:
        _write(name, rest)


def _write(name: str | None, line: bytes) -> None:
    prefix = f"{name}: ".encode() if name else b""
    sys.stdout.buffer.write(prefix + line + b"\n")
    sys.stdout.buffer.flush()
