"""Tensors over gRPC: one stream of raw frames from each stage to the next."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence

import grpc
import mlx.core as mx

from chorus.transport import frames
from chorus.transport.channel import open_channel
from chorus.transport.links import Inbox, LinkLost

SERVICE = "chorus.tensors.v1.Tensors"
METHOD = f"/{SERVICE}/Push"
QUEUE_LENGTH = 64


def tensor_service(inbox: Inbox, timeout: float) -> grpc.GenericRpcHandler:
    """The receiving end, to be added to a rank's server. Bytes pass through without protobuf: no second copy."""

    def push(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        for message in messages:
            try:
                inbox.put(frames.decode(message), timeout)
            except (frames.BadFrame, LinkLost) as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return b""

    return grpc.method_handlers_generic_handler(SERVICE, {"Push": grpc.stream_unary_rpc_method_handler(push)})


class FrameSender:
    """Pushes frames to the next stage; the network's own thread does the sending."""

    def __init__(self, address: str, timeout: float, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._address = address
        self._timeout = timeout
        self._outgoing: queue.Queue[bytes | None] = queue.Queue(QUEUE_LENGTH)
        self._channel = open_channel(address, credentials)
        push = self._channel.stream_unary(METHOD)
        self._call = push.future(iter(self._outgoing.get, None), wait_for_ready=True)

    def send(self, frame: bytes) -> None:
        if self._call.done():
            raise LinkLost(f"the next stage at {self._address} closed the link: {self._call.details()}")
        try:
            self._outgoing.put(frame, timeout=self._timeout)
        except queue.Full:
            raise LinkLost(f"the next stage at {self._address} took no tensors for {self._timeout:g} s") from None

    def close(self) -> None:
        self._call.cancel()
        self._channel.close()


class GrpcLink:
    def __init__(self, sender: FrameSender | None, inbox: Inbox, timeout: float) -> None:
        self._sender = sender
        self._inbox = inbox
        self._timeout = timeout

    def send(self, step: int, arrays: Sequence[mx.array]) -> None:
        assert self._sender is not None, "the last stage has nobody to send to"
        mx.eval(*arrays)
        self._sender.send(frames.encode(step, arrays))

    def receive(self, step: int) -> list[mx.array]:
        return self._inbox.take(step, self._timeout).arrays()

    def close(self) -> None:
        if self._sender:
            self._sender.close()
