"""One call to the agent of one node, for commands that are not a coordinator themselves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio

from chorus.cluster.agent import peers
from chorus.cluster.agent.peers import Met
from chorus.errors import ChorusError
from chorus.messages.calls import own_words, why_failed
from chorus.messages.proto import agent_pb2_grpc
from chorus.security.authority import Authority
from chorus.security.handshake import JoinRefused
from chorus.security.identity import Identity
from chorus.security.names import server_name
from chorus.security.node_folder import own_name, state_dir


class CannotCall(ChorusError):
    """The node does not answer us: names its address and why."""


def cannot_call(who: str, error: grpc.aio.AioRpcError) -> CannotCall:
    """A node that answered before and refuses a call, or is gone now."""
    told = own_words(error) or f"{why_failed(error, 'it refused our call')}; is its agent running?"
    return CannotCall(f"{who}: {told}")


@contextlib.asynccontextmanager
async def agent_at(address: tuple[str, int], state: Path | None = None) -> AsyncIterator[agent_pb2_grpc.AgentStub]:
    """`state` is the folder of the cluster that the node is in, where that is not this user's own."""
    identity = Authority((state or state_dir()) / "authority").coordinator(own_name())
    try:
        met = await peers.ask(address, identity)
    except (OSError, JoinRefused) as error:
        raise CannotCall(f"{address[0]}:{address[1]} does not answer: {error}; is its agent running?") from error
    async with agent_of(met, identity) as stub:
        yield stub


@contextlib.asynccontextmanager
async def agent_of(met: Met, identity: Identity) -> AsyncIterator[agent_pb2_grpc.AgentStub]:
    """The agent of a node whose card we have."""
    target = f"{met.ip}:{met.card.control_port}"
    options = [("grpc.ssl_target_name_override", server_name(met.member.node_id))]
    async with grpc.aio.secure_channel(target, identity.channel_credentials(), options) as channel:
        yield agent_pb2_grpc.AgentStub(channel)
