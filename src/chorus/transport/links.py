"""What a stage needs of a transport: hand arrays to the next stage, take them from the one before."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from chorus.errors import ChorusError
from chorus.transport.frames import Frame


class LinkLost(ChorusError):
    """The neighbour is gone or too late: names who and how long was waited."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a link has passed on so far: bytes of tensors, and bytes as sent, fewer where frames were packed."""

    tensor_bytes: int = 0
    sent_bytes: int = 0


class TokenPath(Protocol):
    """Takes sampled tokens from the leader to the first stage inside the graph."""

    def send_tokens(self, tokens: mx.array, first_stage: int) -> None: ...

    def receive_tokens(self, count: int, leader: int = 0) -> mx.array: ...


class Link(Protocol):
    @property
    def tokens(self) -> TokenPath | None:
        """None where tokens cannot stay inside the graph: then every step brings its own."""
        ...

    @property
    def traffic(self) -> Traffic: ...

    @property
    def look_ahead(self) -> bool:
        """Whether arrays stay inside the graph: then `send` returns before they are computed."""
        ...

    def send(self, step: int, arrays: Sequence[mx.array]) -> None:
        """Pass the arrays of a step on to the next stage."""
        ...

    def receive(self, step: int) -> list[mx.array]:
        """The arrays of a step from the stage before; raises LinkLost after the step's deadline."""
        ...

    def abandon(self, reason: str) -> None:
        """Wake up whoever receives: nothing more will come. May be called from any thread."""
        ...

    def close(self) -> None: ...


class Inbox:
    """Frames that have come in, by step. Filled by the network's threads, emptied by the one that computes.

    Steps count from 1 in each session, so a frame that comes late from another one would be taken for ours.
    """

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._session = 0
        self._frames: dict[int, Frame] = {}
        self._changed = threading.Condition()
        self._closed: str | None = None

    def put(self, frame: Frame, timeout: float, session: int = 0) -> None:
        """Waits while the stage is far behind: the sender is slowed down, nothing piles up."""
        with self._changed:
            if session != self._session:
                raise LinkLost("this stage follows another leader now")
            if not self._changed.wait_for(lambda: len(self._frames) < self._limit or self._closed is not None, timeout):
                raise LinkLost(f"this stage took no tensors for {timeout:g} s")
            self._frames[frame.step] = frame
            self._changed.notify_all()

    def holds(self, step: int) -> bool:
        """Whether nobody would wait for it."""
        return step in self._frames

    def take(self, step: int, timeout: float) -> Frame:
        with self._changed:
            if not self._changed.wait_for(lambda: step in self._frames or self._closed is not None, timeout):
                raise LinkLost(f"no tensors for step {step} came within {timeout:g} s")
            if step not in self._frames:
                raise LinkLost(f"no tensors for step {step} will come: {self._closed}")
            frame = self._frames.pop(step)
            self._changed.notify_all()
            return frame

    def close(self, reason: str, session: int | None = None) -> None:
        """Wake up whoever waits: nothing more will come; where a session is given, only if it is still this one."""
        with self._changed:
            if session is None or session == self._session:
                self._closed = reason
                self._changed.notify_all()

    def clear(self, session: int = 0) -> None:
        """From now on only frames of this session are taken."""
        with self._changed:
            self._session = session
            self._frames.clear()
            self._closed = None
