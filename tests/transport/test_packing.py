from __future__ import annotations

import time
from pathlib import Path

import mlx.core as mx
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from chorus.transport import frames, grpc_link, packing
from chorus.transport.channel import open_server
from chorus.transport.frames import BadFrame, decode, encode, pack
from chorus.transport.grpc_link import FrameSender, GrpcLink, tensor_service
from chorus.transport.links import Inbox, Traffic
from chorus.transport.packing import SMALLEST_BYTES, Figures, Packer, link_speed, pays
from tests.support.sockets import short
from tests.transport.test_frames import ARRAYS, make

SLOW, FAST = 2.5e6, 1e9
LARGE = 1 << 20
DEADLINE = 60.0


@settings(max_examples=150, deadline=None)
@given(st.lists(ARRAYS, max_size=5), st.integers(0, 2**63), st.integers(1, 400))
def test_packing_loses_nothing(kinds: list[tuple[mx.Dtype, list[int]]], step: int, rows: int) -> None:
    arrays = [make(dtype, dims, i) for i, (dtype, dims) in enumerate(kinds)]
    arrays += [make(dtype, [rows, 7], i) for i, dtype in enumerate(frames.DTYPES)]
    plain = encode(step, arrays, receipt=True)
    packed = pack(plain)
    frame = decode(packed)
    assert len(packed) <= len(plain)
    assert frames.wants_receipt(packed)
    assert frame.step == step
    assert bytes(frame.payload) == bytes(decode(plain).payload)
    for sent, received in zip(arrays, frame.arrays(), strict=True):
        assert (sent.dtype, sent.shape) == (received.dtype, received.shape)
        assert bool(mx.array_equal(sent, received, equal_nan=True))


@pytest.mark.parametrize(("dtype", "ratio"), [(mx.float32, 1.15), (mx.bfloat16, 1.3), (mx.float16, 1.1)])
def test_numbers_of_one_scale_become_smaller(dtype: mx.Dtype, ratio: float) -> None:
    plain = encode(1, [mx.random.normal((64, 576), key=mx.random.key(3)).astype(dtype)])
    assert len(plain) / len(pack(plain)) > ratio


def test_noise_and_announcements_stay_as_they_are() -> None:
    noise = encode(1, [mx.random.randint(0, 256, (4096,), key=mx.random.key(5)).astype(mx.uint8)])
    announced = encode(1, [mx.zeros((512, 512))], payload=False)
    assert pack(noise) is noise
    assert pack(announced) is announced


def packed_frame() -> bytes:
    plain = encode(1, [mx.random.normal((40, 64), key=mx.random.key(1))])
    packed = pack(plain)
    assert len(packed) < len(plain)
    return packed


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12_000))
def test_a_packed_frame_that_was_cut_is_refused(missing: int) -> None:
    whole = packed_frame()
    with pytest.raises(BadFrame):
        decode(whole[: -min(missing, len(whole))])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 400), st.integers(1, 255))
def test_damage_to_the_compressed_part_is_found(at: int, change: int) -> None:
    whole = bytearray(packed_frame())
    position = len(whole) - 1 - at
    whole[position] ^= change
    with pytest.raises(BadFrame):
        decode(bytes(whole))


def test_more_after_the_end_is_refused() -> None:
    with pytest.raises(BadFrame):
        decode(packed_frame() + b"more")


def replace_compressed(content: bytes, dims: tuple[int, ...] = (64,)) -> bytes:
    """A frame of one uint8 array whose compressed part holds something else."""
    plain = encode(1, [mx.zeros(dims, mx.uint8)])
    head = pack(encode(1, [mx.zeros((256,), mx.uint8)]))[: frames._HEAD.size]
    shapes = plain[frames._HEAD.size : frames._HEAD.size + 2 + 4 * len(dims)]
    return head + shapes + content


def test_a_small_frame_that_unpacks_to_a_large_one_is_refused_before_it_is_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    monkeypatch.setattr(zstandard, "ZstdDecompressor", lambda: pytest.fail("it was unpacked"))
    with pytest.raises(BadFrame, match="unpacks to 67108864 bytes where its shapes need 64"):
        decode(replace_compressed(bomb))


def test_a_compressed_part_that_hides_its_size_is_refused() -> None:
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64))
    with pytest.raises(BadFrame, match="unpacks to -1 bytes"):
        decode(replace_compressed(hidden))


def test_shapes_that_promise_more_than_any_message_are_refused() -> None:
    frame = bytearray(replace_compressed(b"\x00"))
    frame[frames._HEAD.size + 2 : frames._HEAD.size + 6] = (0x7FFFFFFF).to_bytes(4, "little")
    with pytest.raises(BadFrame, match="at most"):
        decode(bytes(frame))


def figures(link: float | None, ratio: float | None = 1.18, pack: float = 5e8, unpack: float = 1e9) -> Figures:
    return Figures(link, ratio, pack, unpack)


@pytest.mark.parametrize(
    ("nbytes", "known", "packing", "expected"),
    [
        (LARGE, figures(SLOW), False, True),
        (LARGE, figures(FAST), False, False),
        (LARGE, figures(FAST), True, False),
        (LARGE, figures(None), False, False),
        (LARGE, figures(SLOW, ratio=None), False, False),
        (LARGE, figures(SLOW, ratio=1.0), False, False),
        (LARGE, figures(SLOW, ratio=1.03), False, False),
        (LARGE, figures(SLOW, ratio=1.03), True, True),
        (LARGE, figures(SLOW, pack=2e6), False, False),
        (LARGE, figures(SLOW, unpack=2e6), True, False),
        (SMALLEST_BYTES - 1, figures(SLOW), False, False),
        (SMALLEST_BYTES - 1, figures(SLOW), True, False),
        (LARGE, figures(12.5e6), False, True),
        (LARGE, figures(125e6), False, False),
    ],
)
def test_packing_pays_only_where_the_frame_arrives_earlier(
    nbytes: int, known: Figures, packing: bool, expected: bool
) -> None:
    assert pays(nbytes, known, packing) is expected


def test_around_the_turning_point_the_choice_stays_what_it_was() -> None:
    speeds = [1e6 * step for step in range(1, 200)]
    turned_on = {speed for speed in speeds if pays(LARGE, figures(speed), False)}
    stays_on = {speed for speed in speeds if pays(LARGE, figures(speed), True)}
    assert turned_on < stays_on


def test_the_delay_of_an_empty_link_does_not_make_it_slow() -> None:
    assert link_speed(1_000_000, 0.15, 0.05) == pytest.approx(1e7)
    assert link_speed(1_000_000, 0.06, 0.055) == pytest.approx(1e6 / 0.015)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(packing.time, "perf_counter", lambda: self.now)


def large_frame() -> bytes:
    return encode(1, [mx.random.normal((256, 256), key=mx.random.key(1))], receipt=True)


def send_over(packer: Packer, clock: Clock, bytes_per_second: float, count: int) -> list[bytes]:
    sent = []
    for _ in range(count):
        sent.append(packer.outgoing(large_frame()))
        clock.now += len(sent[-1]) / bytes_per_second
        packer.arrived()
    return sent


def test_auto_turns_on_when_a_link_proves_slow_and_off_when_it_proves_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)  # it stands still while we pack, so packing costs nothing here
    packer = Packer("auto", same_machine=False)
    plain = large_frame()
    slow = send_over(packer, clock, SLOW, 4)
    assert slow[0] == plain
    assert all(len(frame) < len(plain) for frame in slow[1:])
    assert packer.traffic == Traffic(4 * len(plain), sum(map(len, slow)))
    packer._figures = figures(SLOW, pack=2e8)
    fast = send_over(packer, clock, FAST, 2 * packing.RECENT)
    assert fast[-1] == plain


def test_frames_behind_each_other_are_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    packer = Packer("auto", same_machine=False)
    sent = [packer.outgoing(large_frame()) for _ in range(3)]
    for frame in sent:
        clock.now += len(frame) / SLOW
        packer.arrived()
    assert packer._figures.link == pytest.approx(SLOW)


def test_auto_packs_nothing_between_ranks_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    packer = Packer("auto", same_machine=True)
    assert not packer.wants_receipt(LARGE)
    packer._figures = figures(SLOW)
    assert packer.outgoing(large_frame()) == large_frame()


@pytest.mark.parametrize(("wish", "smaller"), [("on", True), ("off", False), ("auto", False)])
def test_what_is_asked_for_holds_on_a_real_socket(wish: packing.Compression, smaller: bool, tmp_path: Path) -> None:
    inbox = Inbox()
    server, address = open_server(f"unix:{short(tmp_path)}/rank.sock", 4)
    server.add_generic_rpc_handlers((tensor_service(inbox, DEADLINE),))
    server.start()
    link = GrpcLink(FrameSender(address, DEADLINE, compression=wish), inbox, DEADLINE)
    try:
        sent = [mx.random.normal((2, 700, 64)).astype(mx.bfloat16), mx.array([True, False])]
        link.send(12, sent)
        received = link.receive(12)
        assert all(bool(mx.array_equal(a, b)) for a, b in zip(sent, received, strict=True))
        assert (link.traffic.sent_bytes < link.traffic.tensor_bytes) is smaller
    finally:
        link.close()
        server.stop(0).wait(DEADLINE)


def test_receipts_tell_the_speed_of_a_real_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_link, "is_private", lambda address: False)
    inbox = Inbox()
    server, address = open_server(f"unix:{short(tmp_path)}/rank.sock", 4)
    server.add_generic_rpc_handlers((tensor_service(inbox, DEADLINE),))
    server.start()
    sender = FrameSender(address, DEADLINE, compression="auto")
    link = GrpcLink(sender, inbox, DEADLINE)
    try:
        for step in range(6):
            link.send(step, [mx.zeros((8,)) if step < 2 else mx.random.normal((256, 256))])
            link.receive(step)
        deadline = time.monotonic() + DEADLINE
        # Of all four: a moment in which the machine had other things to do makes one of them look slow.
        while len(sender._packer._speeds) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert sender._packer._figures.link > 1e6
        assert sender._packer._round_trips
    finally:
        link.close()
        server.stop(0).wait(DEADLINE)
