"""Tensors by mx.distributed: neighbours on a ring, any pair over mpi.

The receiver must know a shape before it can receive it, and a receive that nobody answers blocks for ever. So the
sender first says over gRPC what is coming: it knows the shapes before it has computed anything, and a stage asks its
collective only for what is already on its way. An idle rank therefore waits on a socket and spins nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from chorus.transport import frames
from chorus.transport.grpc_link import FrameSender
from chorus.transport.links import Inbox


class CollectiveLink:
    def __init__(
        self,
        group: mx.distributed.Group,
        next_rank: int | None,
        previous_rank: int | None,
        sender: FrameSender | None,
        inbox: Inbox,
        timeout: float,
    ) -> None:
        self._group = group
        self._next = next_rank
        self._previous = previous_rank
        self._sender = sender
        self._inbox = inbox
        self._timeout = timeout

    def send(self, step: int, arrays: Sequence[mx.array]) -> None:
        assert self._sender is not None, "the last stage has nobody to send to"
        assert self._next is not None
        self._sender.send(frames.encode(step, arrays, payload=False))
        mx.eval([mx.distributed.send(a, self._next, group=self._group) for a in arrays if a.size])

    def receive(self, step: int) -> list[mx.array]:
        assert self._previous is not None, "the first stage has nobody to receive from"
        shapes = self._inbox.take(step, self._timeout).shapes
        arrays = [
            mx.distributed.recv(shape.dims, shape.dtype, self._previous, group=self._group)
            if shape.nbytes
            else mx.zeros(shape.dims, shape.dtype)
            for shape in shapes
        ]
        mx.eval(arrays)
        return arrays

    def close(self) -> None:
        if self._sender:
            self._sender.close()


def join_ring(rank: int, hosts: Sequence[str]) -> mx.distributed.Group:
    """Form a ring over `hosts` (ip:port in rank order). Every rank must call this at about the same time."""
    descriptor, name = tempfile.mkstemp(prefix="chorus-ring-", suffix=".json")
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump([[host] for host in hosts], file)
        os.environ["MLX_RANK"], os.environ["MLX_HOSTFILE"] = str(rank), name
        return mx.distributed.init(strict=True, backend="ring")
    finally:
        Path(name).unlink()


def join_mpi(rank: int, size: int) -> mx.distributed.Group:
    """The group that mpirun made; its ranks must be ours."""
    group = mx.distributed.init(strict=True, backend="mpi")
    if (group.rank(), group.size()) != (rank, size):
        raise RuntimeError(
            f"mpi made this rank {group.rank()} of {group.size()} where the plan says {rank} of {size}: "
            "start all ranks by one mpirun"
        )
    return group
