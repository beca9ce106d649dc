from __future__ import annotations

import threading
from pathlib import Path

import mlx.core as mx
import pytest

from chorus.messages.rank import Drop, Evict, Feed, Fork, Part, Split, Step, Store, step_from_wire, step_to_wire
from chorus.transport.channel import open_server
from chorus.transport.collective import join_jaccl
from chorus.transport.frames import decode, encode
from chorus.transport.grpc_link import FrameSender, GrpcLink, tensor_service
from chorus.transport.links import Inbox, LinkLost
from chorus.transport.meeting import CannotJoin
from tests.support.sockets import short


def frame(step: int):  # type: ignore[no-untyped-def]
    return decode(encode(step, [mx.array([step])]))


def test_frames_are_taken_by_step_in_any_order() -> None:
    inbox = Inbox()
    for step in (3, 1, 2):
        inbox.put(frame(step), 1)
    assert [inbox.take(step, 1).step for step in (1, 2, 3)] == [1, 2, 3]


def test_a_frame_that_does_not_come_is_missed_within_the_deadline() -> None:
    with pytest.raises(LinkLost, match=r"no tensors for step 9 came within 0\.05 s"):
        Inbox().take(9, 0.05)


def test_closing_wakes_whoever_waits() -> None:
    inbox = Inbox()
    threading.Timer(0.05, inbox.close, ["the stage before left"]).start()
    with pytest.raises(LinkLost, match="the stage before left"):
        inbox.take(1, 60)


def test_a_stage_that_takes_nothing_slows_its_sender() -> None:
    inbox = Inbox(limit=2)
    inbox.put(frame(1), 1)
    inbox.put(frame(2), 1)
    with pytest.raises(LinkLost, match="took no tensors"):
        inbox.put(frame(3), 0.05)


def test_the_end_of_a_session_closes_no_later_one() -> None:
    inbox = Inbox()
    inbox.clear(2)
    inbox.close("the leader is gone", 1)
    inbox.put(frame(1), 1, 2)
    assert inbox.take(1, 1).step == 1
    inbox.close("the leader is gone", 2)
    with pytest.raises(LinkLost, match="no tensors for step 2 will come: the leader is gone"):
        inbox.take(2, 60)


def test_tensors_cross_a_real_socket(tmp_path: Path) -> None:
    inbox = Inbox()
    server, address = open_server(f"unix:{short(tmp_path)}/rank.sock", 4)
    server.add_generic_rpc_handlers((tensor_service(inbox, 60),))
    server.start()
    link = GrpcLink(FrameSender(address, 60), inbox, 60)
    try:
        sent = [mx.random.normal((2, 700, 64)).astype(mx.bfloat16), mx.array([True, False])]
        link.send(12, sent)
        received = link.receive(12)
        assert all(bool(mx.array_equal(a, b)) for a, b in zip(sent, received, strict=True))
    finally:
        link.close()
        server.stop(0).wait(60)


def test_a_step_survives_the_wire() -> None:
    step = Step(
        9,
        (Drop(3), Fork(4, (Part(1, 17), Part(2, 3))), Store(4, 9, 0, 20, state=True), Split(9, 5, 10), Evict(10)),
        (Feed(4, (5, 6)), Feed(5, ())),
        decode=True,
        logits=True,
    )
    assert step_from_wire(step_to_wire(step)) == step


@pytest.mark.parametrize(
    ("devices", "error"),
    [
        ([[None, "rdma0"], ["rdma0"]], "rank 1 are 1 for 2 ranks"),
        ([["rdma0", "rdma1"], ["rdma0", None]], "rank 0 reaches itself by a device"),
        ([[None, None], ["rdma0", None]], "rank 0 reaches rank 1 by no device"),
    ],
)
def test_a_wrong_device_matrix_is_told_before_anybody_waits(devices: list[list[str | None]], error: str) -> None:
    with pytest.raises(CannotJoin, match=error):
        join_jaccl(0, devices, "127.0.0.1:1")
