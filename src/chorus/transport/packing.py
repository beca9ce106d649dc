"""When packing frames pays: decided per link, from what the link and the packing were measured to do.

A link's speed is known from receipts: the receiver says when a large frame has arrived. Packing is tried now and then
on a real frame. Links of one machine are never packed unless told to.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Literal, get_args

from chorus.transport import frames
from chorus.transport.links import Traffic

Compression = Literal["auto", "off", "on"]

SMALLEST_BYTES = 32 << 10
"""One token of a decode: its delay is the network's round trip, not its size."""
TURN_ON_BELOW = 0.95
"""Of the plain time; once on, packing stays on until it takes longer than plain. The gap keeps it from flapping."""
RECENT = 8
ROUND_TRIPS = 4
"""Small frames that ask for a receipt, to learn what an empty link takes."""
TRY_EVERY = 64


@dataclass(frozen=True)
class Figures:
    """Bytes per second are of plain bytes, but for the link's own."""

    link: float | None = None
    ratio: float | None = None
    """Plain bytes to packed bytes."""
    pack: float = 0.0
    unpack: float = 0.0


def compression_of(text: str) -> Compression:
    """As a leader says it; one that says nothing leaves frames as they are."""
    found = next((wish for wish in get_args(Compression) if wish == (text or "off")), None)
    if found is None:
        raise ValueError(f"compression {text}: expected auto, off or on")
    wish: Compression = found
    return wish


def pays(nbytes: int, figures: Figures, packing: bool) -> bool:
    """Whether a frame arrives earlier packed than plain; `packing` is what was done with the frame before."""
    if nbytes < SMALLEST_BYTES or figures.link is None or figures.ratio is None:
        return False
    plain = nbytes / figures.link
    packed = nbytes / figures.pack + nbytes / figures.ratio / figures.link + nbytes / figures.unpack
    return packed < plain * (1.0 if packing else TURN_ON_BELOW)


def link_speed(nbytes: int, seconds: float, round_trip: float) -> float:
    """What a frame says of its link. The delay of an empty link is none of it, but never most of it either."""
    return nbytes / max(seconds - round_trip, seconds / 4, 1e-6)


class Packer:
    """One link's memory. `outgoing` is called by the thread that sends, `arrived` by the one that reads receipts."""

    def __init__(self, wish: Compression, same_machine: bool) -> None:
        self._wish = "off" if wish == "auto" and same_machine else wish
        self._figures = Figures()
        self._packing = False
        self._traffic = Traffic()
        self._large_frames = 0
        self._round_trips: list[float] = []
        self._asked_small = 0
        self._speeds: deque[float] = deque(maxlen=RECENT)
        self._under_way: deque[tuple[int, float]] = deque()
        self._last_arrival = 0.0
        self._lock = threading.Lock()

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    @property
    def packing(self) -> bool:
        return self._packing

    def wants_receipt(self, nbytes: int) -> bool:
        if self._wish != "auto":
            return False
        if nbytes >= SMALLEST_BYTES:
            return True
        self._asked_small += 1
        return self._asked_small <= ROUND_TRIPS

    def outgoing(self, frame: bytes) -> bytes:
        """The frame as it is to be sent now."""
        sent = self._chosen_form(frame) if len(frame) >= SMALLEST_BYTES else frame
        self._traffic = Traffic(self._traffic.tensor_bytes + len(frame), self._traffic.sent_bytes + len(sent))
        if frames.wants_receipt(sent):
            with self._lock:
                self._under_way.append((len(sent), time.perf_counter()))
        return sent

    def arrived(self) -> None:
        """The oldest frame that asked for a receipt has got one."""
        now = time.perf_counter()
        with self._lock:
            nbytes, sent_at = self._under_way.popleft()
            # Frames queue up behind each other: one begins to move when the one before it is there.
            alone = sent_at >= self._last_arrival
            seconds = now - max(sent_at, self._last_arrival)
            self._last_arrival = now
            if nbytes < SMALLEST_BYTES:
                self._round_trips.append(seconds)
                return
            round_trip = min(self._round_trips, default=0.0) if alone else 0.0
            self._speeds.append(link_speed(nbytes, seconds, round_trip))
            # A busy machine makes a link look slow, nothing makes it look fast: the middle of the better half.
            better = sorted(self._speeds)[len(self._speeds) // 2 :]
            self._figures = replace(self._figures, link=statistics.median(better))

    def _chosen_form(self, frame: bytes) -> bytes:
        if self._wish == "off":
            return frame
        if self._wish == "on":
            self._packing = True
            return frames.pack(frame)
        if self._large_frames % TRY_EVERY == 0:
            self._try_packing(frame)
        self._large_frames += 1
        self._packing = pays(len(frame), self._figures, self._packing)
        return frames.pack(frame) if self._packing else frame

    def _try_packing(self, frame: bytes) -> None:
        started = time.perf_counter()
        packed = frames.pack(frame)
        between = time.perf_counter()
        frames.decode(packed)
        ended = time.perf_counter()
        with self._lock:
            self._figures = replace(
                self._figures,
                ratio=len(frame) / len(packed),
                pack=len(frame) / max(between - started, 1e-6),
                unpack=len(frame) / max(ended - between, 1e-6),
            )
