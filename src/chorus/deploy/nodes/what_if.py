"""The machines of a cluster as they are now, for plans with more of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import grpc.aio

from chorus.cluster.coordinator.process import ConnectedNode
from chorus.config.settings import Settings
from chorus.deploy.nodes.plan import links_between, machine_of, name_here
from chorus.deploy.what_if import NotPlanned, this_machine
from chorus.messages.calls import why_failed
from chorus.messages.proto import agent_pb2 as wire
from chorus.planning.costs import Machine
from chorus.planning.nodes import Machines
from chorus.transport import catalog

ANSWER_SECONDS = 20.0


async def machines_now(
    settings: Settings, here: str, room: int | None, held_bytes: int, present: Sequence[ConnectedNode]
) -> Machines:
    """This machine, which is called `here`, and the nodes that are present, each with what models may take of it, also
    where some have: `room` of this one, or what is free and `held_bytes` that they hold. Raises NotPlanned.
    """
    nodes, fraction = list(present), settings.engine.memory_fraction
    own = await asyncio.to_thread(this_machine, settings, name_here(here, nodes), room)
    held = int(fraction * held_bytes) if room is None else 0
    leader = replace(own.nodes[0], memory=own.nodes[0].memory + held)
    machines = [leader, *await asyncio.gather(*(_asked(node, fraction) for node in nodes))]
    transport = settings.engine.transport
    links = links_between(nodes, catalog.DEFAULT if transport == catalog.AUTO else transport, {}, machines)
    return Machines(tuple(machines), links, own.notes)


async def _asked(node: ConnectedNode, fraction: float) -> Machine:
    try:
        reply = await node.stub.Profile(wire.ProfileRequest(memory_fraction=fraction), timeout=ANSWER_SECONDS)
    except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
        why = why_failed(error) if isinstance(error, grpc.aio.AioRpcError) else "it has just left"
        raise NotPlanned(f"{node.name} does not say what it has: {why}; try again") from None
    machine = machine_of(json.loads(reply.node))
    return replace(machine, name=node.name, memory=machine.memory + node.state.memory_booked)
