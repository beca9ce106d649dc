"""The other ranks as the leader sees them: greeted, loaded, sent every step, watched."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc
import mlx.core as mx

from chorus import __version__
from chorus.proto import rank_pb2 as wire
from chorus.proto import rank_pb2_grpc
from chorus.shard.load import LoadError
from chorus.shard.split import BadSplit
from chorus.shard.steps import Step
from chorus.shard.wire import step_to_wire
from chorus.transport.channel import open_channel
from chorus.transport.links import Link, LinkLost

log = logging.getLogger("chorus.engine")

EXIT_RANK_LOST = 71
QUEUE_LENGTH = 256


class RankLost(Exception):
    """A rank failed, and with it the group: names the rank and what it said last."""


class CannotForm(Exception):
    """The group cannot start as it is: trying again would not help."""


@dataclass
class Follower:
    rank: int
    address: str
    hello: wire.HelloReply = field(default_factory=wire.HelloReply)
    loaded: wire.Loaded = field(default_factory=wire.Loaded)
    finished_step: int = 0
    memory_bytes: int = 0
    failure: str | None = None

    def __post_init__(self) -> None:
        self._channel = open_channel(self.address)
        self._stub = rank_pb2_grpc.RankStub(self._channel)
        self._steps: queue.Queue[wire.Step | None] = queue.Queue(QUEUE_LENGTH)

    @property
    def name(self) -> str:
        return f"rank {self.rank} at {self.address}"

    def greet(self, timeout: float) -> None:
        try:
            self.hello = self._stub.Hello(wire.HelloRequest(version=__version__), timeout=timeout, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise CannotForm(f"{self.name} refused the leader: {error.details()}") from None
            raise CannotForm(
                f"{self.name} did not answer within {timeout:g} s: is it started, and does a firewall let us through?"
            ) from None
        if self.hello.version != __version__:
            raise CannotForm(
                f"{self.name} runs Chorus {self.hello.version}, the leader {__version__}: install the same on both"
            )
        if self.hello.rank != self.rank:
            raise CannotForm(f"{self.name} says it is rank {self.hello.rank}: start each address with its own rank")

    def load(self, request: wire.LoadRequest, progress: Callable[[int, int], None], timeout: float) -> None:
        try:
            for message in self._stub.Load(request, timeout=timeout):
                progress(message.done_bytes, message.total_bytes)
                if message.HasField("loaded"):
                    self.loaded = message.loaded
        except grpc.RpcError as error:
            raise CannotForm(f"{self.name} cannot load: {error.details()}") from None

    def start(self, on_failure: Callable[[], None]) -> None:
        answers = self._stub.Run(iter(self._steps.get, None))

        def read() -> None:
            try:
                for done in answers:
                    if done.error:
                        raise RankLost(done.error)
                    self.finished_step, self.memory_bytes = done.number, done.memory_bytes
                self.failure = f"{self.name} closed its link"
            except RankLost as error:
                self.failure = str(error)
            except grpc.RpcError as error:
                self.failure = f"{self.name} is gone: {error.details()}"
            on_failure()

        threading.Thread(target=read, name=f"rank-{self.rank}", daemon=True).start()

    def send(self, message: wire.Step, timeout: float) -> None:
        try:
            self._steps.put(message, timeout=timeout)
        except queue.Full:
            raise RankLost(f"{self.name} took no step for {timeout:g} s") from None

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self._steps.put_nowait(None)
        self._channel.close()


class PipelineFollowers:
    """All ranks but the leader, as one chain that ends at the leader's link."""

    def __init__(self, followers: Sequence[Follower], link: Link, step_timeout: float) -> None:
        self.followers = followers
        # One chunk in every stage and one on its way: more would only make cancelling slower.
        self.depth = len(followers) + 2
        self._link = link
        self._timeout = step_timeout
        self._lost = threading.Event()
        self._waiting_since: float | None = None
        for follower in followers:
            follower.start(self._lost.set)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def send(self, step: Step) -> None:
        message = step_to_wire(step)
        for follower in self.followers:
            follower.send(message, self._timeout)

    def receive(self, step: Step) -> list[mx.array] | None:
        if not step.feeds:
            return None
        with self._waiting():
            try:
                return self._link.receive(step.number)
            except LinkLost as error:
                raise RankLost(self._blame(step.number, str(error))) from error

    def check(self) -> None:
        if self._lost.is_set():
            raise RankLost("; ".join(f.failure for f in self.followers if f.failure))

    def close(self) -> None:
        for follower in self.followers:
            follower.close()
        self._link.close()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        self._waiting_since = time.monotonic()
        try:
            yield
        finally:
            self._waiting_since = None

    def _watch(self) -> None:
        """A collective that lost its peer never returns: only leaving the process ends it."""
        while not self._lost.wait(1.0):
            since = self._waiting_since
            if since is not None and time.monotonic() - since > self._timeout + 5.0:
                break
        deadline = time.monotonic() + 5.0
        while self._waiting_since is not None:
            if time.monotonic() > deadline:
                log.critical("%s; leaving", self._blame(0, "stuck in a collective"))
                os._exit(EXIT_RANK_LOST)
            threading.Event().wait(0.1)

    def _blame(self, step: int, what: str) -> str:
        """The first rank in the chain that is behind is the one to look at."""
        failed = [follower.failure for follower in self.followers if follower.failure]
        if failed:
            return "; ".join(failed)
        for follower in reversed(self.followers):
            if follower.finished_step < step:
                return f"{what}; {follower.name} has only finished step {follower.finished_step}"
        return what


OTHERS_SECONDS = 5.0
"""Once one rank has failed, how long the others may still say that they failed too."""


def load_all(
    followers: Sequence[Follower],
    request: wire.LoadRequest,
    own: Callable[[], None],
    progress: Callable[[int, int, int], None],
    timeout: float,
) -> None:
    """Every rank loads at the same time, the leader (`own`) on this thread. Raises what every failing rank said."""
    failures: dict[int, str] = {}
    changed = threading.Condition()
    left = {follower.rank for follower in followers}

    def load(follower: Follower) -> None:
        failure = None
        try:
            follower.load(request, lambda done, total: progress(follower.rank, done, total), timeout)
        except CannotForm as error:
            failure = str(error)
        with changed:
            left.discard(follower.rank)
            if failure:
                failures[follower.rank] = failure
            changed.notify_all()

    for follower in followers:
        threading.Thread(target=load, args=(follower,), name=f"load-{follower.rank}", daemon=True).start()
    try:
        own()
    except (LoadError, BadSplit) as error:
        failures[0] = f"rank 0 cannot load: {error}"
    with changed:
        changed.wait_for(lambda: not left or bool(failures), timeout)
        changed.wait_for(lambda: not left, OTHERS_SECONDS if failures else timeout)
    if failures:
        raise CannotForm("; ".join(failures[rank] for rank in sorted(failures)))
