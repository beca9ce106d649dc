"""The nodes of one server and its own door to them: met once, for all of its models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from chorus.cluster.agent.process import Agent, AgentOptions
from chorus.cluster.coordinator.process import Nodes
from chorus.deploy.nodes.options import ClusterOptions
from chorus.platform.network.ports import free_port
from chorus.security.authority import Authority
from chorus.security.identity import Identity, own_id
from chorus.security.node_folder import own_name, state_dir

READY_SECONDS = 15.0


@dataclass(frozen=True)
class Meeting:
    nodes: Nodes
    door: Agent
    """Where nodes call in and get model files."""
    identity: Identity

    @property
    def door_id(self) -> str:
        return self.nodes.own_node_id


@contextlib.asynccontextmanager
async def meet(options: ClusterOptions) -> AsyncIterator[Meeting]:
    """Find nodes and let them in for as long as this lasts."""
    state = state_dir()
    authority = Authority(state / "authority")
    identity = authority.coordinator(own_name())
    agent = Agent(
        AgentOptions(
            name=own_name(),
            state=state,
            logs=options.logs,
            log_name=options.here,
            host=options.host,
            port=_free_door(options.host, options.port),
            announce=False,
            timing=options.timing,
            lock=False,
        )
    )
    running = asyncio.create_task(agent.run())
    door_id = own_id(state / "identity")
    discover = options.discover and not options.peers
    nodes = Nodes(authority, identity, door_id, options.peers, discover, agent.registry, options.timing, options.hints)
    try:
        ready = asyncio.create_task(agent.ready.wait())
        await asyncio.wait([ready, running], timeout=READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if running.done():
            running.result()
        await nodes.start()
        yield Meeting(nodes, agent, identity)
    finally:
        await nodes.stop()
        agent.stop()
        await asyncio.gather(running, return_exceptions=True)


def _free_door(host: str, port: int) -> int:
    """The usual port, or 0 for any where an agent of this machine has it."""
    return port if port and free_port(host, port) else 0
