"""`chorus drain`: take a node out of work before it is switched off, and bring it back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import grpc.aio
import typer

from chorus.cli.logs import find_node
from chorus.cli.own_server import PortOption
from chorus.cli.up import on_first_host
from chorus.cluster.coordinator.calls import agent_at, cannot_call
from chorus.messages.proto import agent_pb2 as wire

CALL_SECONDS = 30.0


def drain(
    node: Annotated[str, typer.Argument(help="Name of the node, or its host:port.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it work again.")] = False,
    port: PortOption = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="In the cluster of this file, by SSH.")] = None,
) -> None:
    """End a node's ranks and give it no more; what is served goes on over the others.

    Example: chorus drain mini2
    """
    if config:
        on_first_host(config, ["drain", node, *(["--undo"] if undo else [])], CALL_SECONDS * 2)
        return
    name, address, state = find_node(node, port)
    told = asyncio.run(_drain(address, state, not undo))
    typer.echo(f"{name} is {'draining' if told.draining else 'at work'}")


async def _drain(address: tuple[str, int], state: Path | None, draining: bool) -> wire.Node:
    async with agent_at(address, state) as agent:
        try:
            return await agent.Drain(wire.DrainRequest(draining=draining), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise cannot_call(address[0], error) from None
