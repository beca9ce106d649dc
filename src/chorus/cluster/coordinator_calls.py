"""One call to the agent of one node, for commands that are not a coordinator themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc.aio

from chorus.cluster import agent_peers
from chorus.cluster.agent_paths import node_id, own_name, state_dir
from chorus.cluster.trust import Authority
from chorus.cluster.trust_identity import CHANNEL_OPTIONS
from chorus.cluster.trust_join import JoinRefused
from chorus.proto import agent_pb2_grpc


class CannotCall(Exception):
    """The node does not answer us: names its address and why."""


@contextlib.asynccontextmanager
async def agent_at(address: tuple[str, int]) -> AsyncIterator[agent_pb2_grpc.AgentStub]:
    state = state_dir()
    identity = Authority(state / "authority").coordinator(own_name(), node_id(state))
    try:
        card, _ = await asyncio.to_thread(agent_peers.ask, address, identity)
    except (OSError, JoinRefused) as error:
        raise CannotCall(f"{address[0]}:{address[1]} does not answer: {error}; is its agent running?") from error
    target = f"{address[0]}:{card.control_port}"
    async with grpc.aio.secure_channel(target, identity.channel_credentials(), CHANNEL_OPTIONS) as channel:
        yield agent_pb2_grpc.AgentStub(channel)
