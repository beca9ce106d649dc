"""Tensors by mx.distributed: neighbours on a ring, any pair over mpi.

The receiver must know a shape before it can receive it, and a receive that nobody answers blocks for ever. So the
sender first says over gRPC what is coming: it knows the shapes before it has computed anything, and a stage asks its
collective only for what is already on its way. An idle rank therefore waits on a socket and spins nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import logging
import os
from collections.abc import Mapping, Sequence

import mlx.core as mx

from chorus.platform.process.timing import WatchTimes
from chorus.platform.storage.disk import nameless_file
from chorus.telemetry.phases import TRANSPORT, WAIT, clock
from chorus.transport import cables, catalog, frames
from chorus.transport.grpc_link import FrameSender, sender_to_next, take_frame
from chorus.transport.links import Inbox, TokenPath, Traffic
from chorus.transport.meeting import CannotJoin, Connection, DeviceMatrix, Meeting

log = logging.getLogger("chorus.transport")


class CollectiveLink:
    def __init__(self, group: mx.distributed.Group, meeting: Meeting, sender: FrameSender | None, inbox: Inbox) -> None:
        """With `look_ahead` what is sent and received stays inside the graph; nobody waits for it but the device."""
        self.look_ahead = meeting.look_ahead
        self._group = group
        self._next = meeting.next_rank
        self._previous = meeting.previous_rank
        self._sender = sender
        self._inbox = inbox
        self._timeout = meeting.step_timeout

    @property
    def tokens(self) -> TokenPath | None:
        return self if self.look_ahead else None

    @property
    def traffic(self) -> Traffic:
        return Traffic()  # a collective's own bytes are not ours to count

    def send(self, step: int, arrays: Sequence[mx.array]) -> None:
        assert self._sender is not None, "the last stage has nobody to send to"
        assert self._next is not None
        # Not sooner: a receive that is asked for early spins until its tensors come.
        self._sender.send(frames.encode(step, arrays, payload=False))
        for array in arrays:
            # One after the other: both ends must pass them in the same order.
            self._pass(array, self._next)

    def receive(self, step: int) -> list[mx.array]:
        assert self._previous is not None, "the first stage has nobody to receive from"
        announced = take_frame(self._inbox, step, self._timeout, self._previous)
        return [self._take(shape, self._previous) for shape in announced.shapes]

    def send_tokens(self, tokens: mx.array, first_stage: int) -> None:
        """The leader hands what it has sampled to the first stage."""
        self._pass(tokens, first_stage)

    def receive_tokens(self, count: int, leader: int = 0) -> mx.array:
        return self._take(frames.Shape(mx.uint32, (count,)), leader)

    def _pass(self, array: mx.array, to: int) -> None:
        if not array.size:
            return
        if not self.look_ahead:
            _finish(array)
        before = clock.enter(TRANSPORT, to)
        clock.sent = array.nbytes
        self._start(mx.distributed.send(array, to, group=self._group))
        clock.enter(before)

    def _take(self, shape: frames.Shape, source: int) -> mx.array:
        if not shape.nbytes:
            return mx.zeros(shape.dims, shape.dtype)
        # It was announced before it was computed: most of this is waiting.
        before = clock.enter(TRANSPORT if self.look_ahead else WAIT, source)
        clock.received = shape.nbytes
        array = mx.distributed.recv(shape.dims, shape.dtype, source, group=self._group)
        self._start(array)
        clock.enter(before)
        return array

    def _start(self, array: mx.array) -> None:
        if self.look_ahead:
            mx.async_eval(array)
        else:
            _finish(array)

    def abandon(self, reason: str) -> None:
        self._inbox.close(reason)

    def close(self) -> None:
        if self._sender:
            self._sender.close()


def _finish(array: mx.array) -> None:
    """Collectives run on the CPU: what a GPU has computed must be in memory before, and the other way round."""
    mx.eval(array)
    mx.synchronize()


def open_ring(meeting: Meeting, inbox: Inbox) -> Connection:
    return _connected(join_ring(meeting.rank, meeting.hosts), meeting, inbox)


def open_mpi(meeting: Meeting, inbox: Inbox) -> Connection:
    return _connected(join_mpi(meeting.rank, meeting.ranks), meeting, inbox)


def open_jaccl(meeting: Meeting, inbox: Inbox) -> Connection:
    if not meeting.rdma_devices:
        raise CannotJoin(
            "jaccl needs the RDMA devices of every rank: give a hostfile that has them (mlx.distributed_config writes "
            "one), or use `chorus serve --cluster`, which finds them"
        )
    return _connected(join_jaccl(meeting.rank, meeting.rdma_devices, meeting.coordinator), meeting, inbox)


def open_nccl(meeting: Meeting, inbox: Inbox) -> Connection:
    return _connected(join_nccl(meeting.rank, meeting.ranks, meeting.coordinator), meeting, inbox)


def _connected(world: mx.distributed.Group, meeting: Meeting, inbox: Inbox) -> Connection:
    """All ranks have formed one group: what this one has of it."""
    peers = None
    if meeting.members > 1:
        peers = world if meeting.stages == 1 else split_group(world, meeting.stage, meeting.member)
    if meeting.stages == 1:
        return Connection(None, peers)
    return Connection(CollectiveLink(world, meeting, sender_to_next(meeting), inbox), peers)


def join_ring(rank: int, hosts: Sequence[str]) -> mx.distributed.Group:
    """Form a ring over `hosts` (ip:port in rank order). Every rank must call this at about the same time."""
    return _init("ring", {"MLX_RANK": str(rank)}, {"MLX_HOSTFILE": [[host] for host in hosts]})


def join_mpi(rank: int, size: int) -> mx.distributed.Group:
    """The group that mpirun made; its ranks must be ours."""
    group = _init("mpi", {}, {})
    if (group.rank(), group.size()) != (rank, size):
        raise CannotJoin(
            f"mpi made this rank {group.rank()} of {group.size()} where the plan says {rank} of {size}: "
            "start all ranks by one mpirun"
        )
    return group


def join_jaccl(rank: int, devices: DeviceMatrix, coordinator: str) -> mx.distributed.Group:
    """RDMA over Thunderbolt. `devices[i][j]` is the device, or the list of devices, by which rank i reaches rank j."""
    try:
        shape = cables.shape_of(devices)
    except cables.NotCabled as error:
        raise CannotJoin(str(error)) from None
    settings = {"MLX_RANK": str(rank), "MLX_JACCL_COORDINATOR": coordinator}
    if shape == "ring":
        settings["MLX_JACCL_RING"] = "1"
    return _init("jaccl", settings, {"MLX_IBV_DEVICES": devices})


def join_nccl(rank: int, size: int, coordinator: str) -> mx.distributed.Group:
    host, _, port = coordinator.rpartition(":")
    settings = {"MLX_RANK": str(rank), "MLX_WORLD_SIZE": str(size), "NCCL_HOST_IP": host, "NCCL_PORT": port}
    return _init("nccl", settings, {})


def split_group(world: mx.distributed.Group, part: int, rank: int) -> mx.distributed.Group:
    """The ranks that name the same part, as a group of their own. Every rank of `world` must call this."""
    try:
        group = world.split(part, rank)
    except RuntimeError as error:
        raise CannotJoin(f"this transport's groups cannot be divided: {error}; use mpi") from error
    # MLX ends MPI before Python lets go of its last objects, and MPI aborts when a group is freed after that: so this
    # one is never freed. There is one in the life of a process.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    return group


def _prepare(settings: Mapping[str, str]) -> None:
    for name, value in cables.environment(settings, os.environ).items():
        if value is not None:
            os.environ[name] = value
            continue
        text = os.environ.pop(name)
        if name in cables.JACCL_FIRST:
            log.warning("%s=%s is ignored: the plan says how ranks meet", name, text)
    if os.environ.get(cables.FAST_SYNC, "0") not in ("", "0"):
        log.warning(
            "%s is set: MLX calls it unreliable, and a GPU that it locks up stays so until the Mac is restarted",
            cables.FAST_SYNC,
        )


def _init(backend: str, settings: Mapping[str, str], files: Mapping[str, object]) -> mx.distributed.Group:
    """Named and strict: MLX would otherwise fall back to a group of one in silence."""
    settings = dict(settings)
    with contextlib.ExitStack() as cleanup:
        for variable, content in files.items():
            data = json.dumps(content).encode()
            # Whoever is killed while it waits here would leave a file with a name behind.
            file = nameless_file(len(data))
            cleanup.callback(os.close, file)
            os.pwrite(file, data, 0)
            settings[variable] = f"/dev/fd/{file}"
        _prepare(settings)
        seconds = WatchTimes.told().join_seconds
        log.info("joining the %s group, for at most %g s", backend, seconds)
        # MLX waits for its peers without a deadline and keeps Python's lock meanwhile: only this timer still runs.
        faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            return mx.distributed.init(strict=True, backend=backend)
        except (RuntimeError, ValueError) as error:
            advice = cables.remedy(str(error)) if catalog.get(backend).rdma else ""
            raise CannotJoin(f"the {backend} group did not form: {error}{advice and f'; {advice}'}") from error
        finally:
            faulthandler.cancel_dump_traceback_later()
