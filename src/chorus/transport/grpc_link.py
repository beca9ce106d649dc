"""Tensors over gRPC: one stream of raw frames from each stage to the next, and receipts for some of them back."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Sequence

import grpc
import mlx.core as mx

from chorus.messages.calls import why_failed
from chorus.security.names import located
from chorus.telemetry.phases import NOBODY, TRANSPORT, WAIT, clock
from chorus.transport import frames
from chorus.transport.channel import is_private, open_channel
from chorus.transport.links import Inbox, LinkLost, TokenPath, Traffic
from chorus.transport.meeting import Connection, Meeting
from chorus.transport.packing import Compression, Packer
from chorus.transport.security import PRIVATE, Security

SERVICE = "chorus.tensors.v1.Tensors"
METHOD = f"/{SERVICE}/Push"
QUEUE_LENGTH = 64
LOOK_SECONDS = 0.5
"""How often whoever waits to send looks whether the next stage is still there."""
_SESSION = "chorus-session"


def session_metadata(session: int) -> tuple[tuple[str, str], ...]:
    """What a stream between ranks says of itself: it belongs to one leader's session for all its life."""
    return ((_SESSION, str(session)),)


def session_of(context: grpc.ServicerContext) -> int:
    told = dict(context.invocation_metadata()).get(_SESSION, "0")
    return int(told) if told.isdecimal() else 0


def tensor_service(inbox: Inbox, timeout: float) -> grpc.GenericRpcHandler:
    """The receiving end, to be added to a rank's server. Bytes pass through without protobuf: no second copy."""

    def push(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        session = session_of(context)
        for message in messages:
            # First of all: the sender measures the link with it, not what we do with the frame.
            if frames.wants_receipt(message):
                yield b""
            try:
                inbox.put(frames.decode(message), timeout, session)
            except (frames.BadFrame, LinkLost) as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    return grpc.method_handlers_generic_handler(SERVICE, {"Push": grpc.stream_stream_rpc_method_handler(push)})


class FrameSender:
    """Pushes frames to the next stage; the network's own threads pack and send them."""

    def __init__(
        self,
        address: str,
        timeout: float,
        security: Security = PRIVATE,
        compression: Compression = "off",
        session: int = 0,
        rank: int = NOBODY,
    ) -> None:
        """To that rank, where it is known."""
        self.rank = rank
        self._next = located("the next stage", address)
        self._timeout = timeout
        self._outgoing: queue.Queue[bytes | None] = queue.Queue(QUEUE_LENGTH)
        self._packer = Packer(compression, is_private(address))
        self._channel = open_channel(address, security)
        push = self._channel.stream_stream(METHOD)
        frames_out = map(self._packer.outgoing, iter(self._outgoing.get, None))
        self._call = push(frames_out, metadata=session_metadata(session), wait_for_ready=True)
        threading.Thread(target=self._read_receipts, name="receipts", daemon=True).start()

    @property
    def traffic(self) -> Traffic:
        return self._packer.traffic

    def send(self, frame: bytes) -> None:
        before = clock.enter(TRANSPORT, self.rank)
        self._queue(frame)
        clock.enter(before)

    def _queue(self, frame: bytes) -> None:
        clock.sent = len(frame)
        if self._outgoing.full():
            clock.enter(WAIT, self.rank)
        deadline = time.monotonic() + self._timeout
        while not self._call.done():
            try:
                self._outgoing.put(frame, timeout=LOOK_SECONDS)
                return
            except queue.Full:
                if time.monotonic() > deadline:
                    raise LinkLost(f"{self._next} took no tensors for {self._timeout:g} s") from None
        raise LinkLost(f"{self._next} is gone: {why_failed(self._call)}")

    def send_arrays(self, step: int, arrays: Sequence[mx.array]) -> None:
        before = clock.enter(TRANSPORT, self.rank)
        nbytes = sum(array.nbytes for array in arrays)
        self._queue(frames.encode(step, arrays, receipt=self._packer.wants_receipt(nbytes)))
        clock.enter(before)

    def abandon(self) -> None:
        """Wake up whoever sends. May be called from any thread."""
        self._call.cancel()

    def close(self) -> None:
        self._call.cancel()
        with contextlib.suppress(queue.Full):
            self._outgoing.put_nowait(None)  # for the thread that takes frames from there
        self._channel.close()

    def _read_receipts(self) -> None:
        """Until the call ends; why it ended is for whoever sends next."""
        try:
            for _ in self._call:
                self._packer.arrived()
        except grpc.RpcError:
            return


def sender_to_next(meeting: Meeting) -> FrameSender | None:
    """None for the last stage."""
    if meeting.next_rank is None:
        return None
    address = meeting.addresses[meeting.next_rank]
    return FrameSender(
        *(address, meeting.step_timeout, meeting.security, meeting.compression),
        session=meeting.session,
        rank=meeting.next_rank,
    )


def take_frame(inbox: Inbox, step: int, timeout: float, rank: int) -> frames.Frame:
    """What that rank has sent for a step; whoever has to wait for it says so."""
    if inbox.holds(step):
        return inbox.take(step, timeout)
    before = clock.enter(WAIT, rank)
    frame = inbox.take(step, timeout)
    clock.enter(before)
    return frame


def open_grpc(meeting: Meeting, inbox: Inbox) -> Connection:
    sender, previous = sender_to_next(meeting), meeting.previous_rank
    return Connection(GrpcLink(sender, inbox, meeting.step_timeout, meeting.session, previous), None)


class GrpcLink:
    tokens: TokenPath | None = None
    look_ahead = False

    def __init__(
        self,
        sender: FrameSender | None,
        inbox: Inbox,
        timeout: float,
        session: int = 0,
        previous: int | None = None,
    ) -> None:
        """`previous` is the rank that tensors come from; None: nobody's, or nobody knows."""
        self._previous = NOBODY if previous is None else previous
        self._sender = sender
        self._inbox = inbox
        self._timeout = timeout
        self._session = session

    @property
    def traffic(self) -> Traffic:
        return self._sender.traffic if self._sender else Traffic()

    def send(self, step: int, arrays: Sequence[mx.array]) -> None:
        assert self._sender is not None, "the last stage has nobody to send to"
        mx.eval(*arrays)
        self._sender.send_arrays(step, arrays)

    def receive(self, step: int) -> list[mx.array]:
        frame = take_frame(self._inbox, step, self._timeout, self._previous)
        before = clock.enter(TRANSPORT, self._previous)
        arrays = frame.arrays()
        clock.received = len(frame.payload)
        clock.enter(before)
        return arrays

    def abandon(self, reason: str) -> None:
        # The inbox outlives this link: another session may have it by now.
        self._inbox.close(reason, self._session)
        if self._sender:
            self._sender.abandon()

    def close(self) -> None:
        if self._sender:
            self._sender.close()
