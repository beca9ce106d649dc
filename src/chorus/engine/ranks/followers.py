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
from chorus.engine.ranks.patience import StepPatience
from chorus.errors import ChorusError
from chorus.messages.calls import own_words, why_failed
from chorus.messages.load import Greeting, Loaded, LoadProgress, LoadRequest, Status
from chorus.messages.proto import rank_pb2, rank_pb2_grpc, trace_pb2
from chorus.messages.protocol import PROTOCOL, misfit
from chorus.messages.rank import Step, step_to_wire
from chorus.planning.split import SplitError
from chorus.platform.memory.metal import raise_if_gpu_lost
from chorus.platform.process.looks import Looks
from chorus.platform.process.losses import Cause, Loss, cause_of, exit_code, gravest
from chorus.platform.process.timing import WatchTimes
from chorus.rank.load import LoadError
from chorus.rank.parallel import LeadingSide
from chorus.security.names import located
from chorus.telemetry.trace.clocks import Ping
from chorus.transport import catalog
from chorus.transport.channel import open_channel
from chorus.transport.grpc_link import session_metadata
from chorus.transport.links import LinkLost, Traffic
from chorus.transport.meeting import CannotJoin
from chorus.transport.security import PRIVATE, Security

log = logging.getLogger("chorus.engine")

QUEUE_LENGTH = 256
STUCK_SECONDS = 2.0
"""How long the main thread may take to notice a lost rank by itself."""
BLAME_SECONDS = 0.5
"""How long after a collective has failed somebody else may be heard to be the cause: connections break with a rank."""
UNLOAD_SECONDS = 1.5
"""How long a leader that ends waits for its followers to say that they let go; less than a supervisor waits for it."""

MOVED_SECONDS = 20.0
"""How long a process may take to answer that a worker has just started for us, and seen to listen."""
MOST_MOVES = 5
"""How many of them may end before they have answered."""

TRACE_SECONDS = 10.0
"""How long a rank may take to answer what a trace asks of it."""

LEAVE_SECONDS = 2.0
"""How long a rank that hangs may take to end once it is asked to."""


class RankLost(ChorusError):
    """A rank failed, and with it the group: names the rank and what it said last."""

    def __init__(self, told: str, cause: Cause = Cause.OUTSIDE) -> None:
        super().__init__(told)
        self.loss = Loss(cause, told)


DEADLINE = "engine.start_timeout_seconds, or `chorus worker mlx-distributed --start-timeout`"
"""What sets how long ranks may take to come and to load."""


class CannotForm(ChorusError):
    """The group cannot start as it is: trying again would not help."""


@dataclass
class Follower:
    rank: int
    address: str
    security: Security = PRIVATE
    hello: Greeting = field(default_factory=Greeting)
    loaded: Loaded = field(default_factory=Loaded)
    finished_step: int = 0
    memory_bytes: int = 0
    cache_bytes_per_token: int = 0
    state_bytes: int = 0
    growing_layers: int = 0
    stored_bytes: int = 0
    disk_bytes: int = 0
    free_bytes: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    phase_seconds: tuple[float, ...] = ()
    waited_seconds: tuple[float, ...] = ()
    heard_at: float = 0.0
    """When it last said anything: every message of its `Run` is a sign of life."""
    loss: Loss | None = None
    """Why it is taken for lost, once it is."""
    disk_news: queue.SimpleQueue[Status] = field(default_factory=queue.SimpleQueue)
    """Of the steps after which it had something to tell about its disk."""

    def __post_init__(self) -> None:
        self.place = self.address
        """Where its process is: another port where a worker has started one for this leader."""
        self._door = self._channel = open_channel(self.address, self.security)
        self._stub = rank_pb2_grpc.RankStub(self._channel)
        self._stay: grpc.Call | None = None
        self._steps: queue.Queue[rank_pb2.Step | None] = queue.Queue(QUEUE_LENGTH)
        self._in_collective = False
        self._session = 0
        self._answers: grpc.Call | None = None
        self._on_loss: Callable[[], None] = lambda: None
        self._losing = threading.Lock()
        self._closed = False

    @property
    def name(self) -> str:
        return located(f"rank {self.rank}", self.address)

    def greet(self, wanted: rank_pb2.PlaceRequest, timeout: float) -> None:
        """`wanted` is what we ask for where a worker answers that starts a process for each leader."""
        deadline = time.monotonic() + timeout
        moves = 0
        while True:
            try:
                self._say_hello(deadline)
                if not self.hello.opens:
                    return
                moves += 1
                self._move_in(wanted, deadline)
            except grpc.RpcError as error:
                late = error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
                if self.place != self.address and (late or moves >= MOST_MOVES):
                    raise CannotForm(
                        f"{self.name} has started a process for this leader, which does not answer at {self.place}: "
                        "does a firewall let us through to that port?"
                    ) from None
                if error.code() is grpc.StatusCode.UNAVAILABLE and error.details() and time.monotonic() < deadline:
                    self._step_back()
                    continue  # it ended in this very moment: the next one may come
                if not late:
                    raise CannotForm(f"{self.name} refused the leader: {_told(error)}") from None
                raise CannotForm(
                    f"{self.name} did not answer within {timeout:g} s ({DEADLINE}): is it started, and does a firewall "
                    "let us through?"
                ) from None

    def _say_hello(self, deadline: float) -> None:
        own = rank_pb2.HelloRequest(version=__version__, protocol=PROTOCOL)
        left, moved = deadline - time.monotonic(), self.place != self.address
        # Who was just started for us answers at once, or is gone again.
        answer = self._stub.Hello(own, timeout=min(left, MOVED_SECONDS) if moved else left, wait_for_ready=not moved)
        self.hello = Greeting.from_wire(answer)
        if problem := misfit(self.name, self.hello.protocol, self.hello.version, __version__, "the leader"):
            raise CannotForm(problem)
        if self.hello.rank != self.rank:
            raise CannotForm(f"{self.name} says it is rank {self.hello.rank}: start each address with its own rank")

    def _move_in(self, wanted: rank_pb2.PlaceRequest, deadline: float) -> None:
        """Have a process of our own started, which is kept for as long as this call lasts, and talk to that one."""
        stay = rank_pb2_grpc.RankStub(self._door).Place(wanted)
        patience = threading.Timer(max(0.0, deadline - time.monotonic()), stay.cancel)
        patience.start()
        try:
            port = next(stay).port
        finally:
            patience.cancel()
        self._stay, self.place = stay, f"{self.address.rpartition(':')[0]}:{port}"
        self._channel = open_channel(self.place, self.security)
        self._stub = rank_pb2_grpc.RankStub(self._channel)

    def _step_back(self) -> None:
        """To the address that was given: what was started there for us is gone."""
        if self._channel is not self._door:
            self._channel.close()
        if self._stay:
            self._stay.cancel()
        self._channel, self.place = self._door, self.address
        self._stub = rank_pb2_grpc.RankStub(self._channel)

    def begin_load(self, request: LoadRequest, timeout: float) -> Callable[[Callable[[int, int], None]], None]:
        """Asks it to load, at once; what it answers waits until it has loaded, and is told of progress meanwhile."""
        self._in_collective, self._session = catalog.get(request.transport).collective, request.session
        answers = self._stub.Load(request.to_wire(), timeout=timeout)

        def wait(progress: Callable[[int, int], None]) -> None:
            try:
                for message in map(LoadProgress.from_wire, answers):
                    progress(message.done_bytes, message.total_bytes)
                    self.loaded = message.loaded or self.loaded
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise CannotForm(f"{self.name} has not loaded within {timeout:g} s ({DEADLINE})") from None
                raise CannotForm(f"{self.name} cannot load: {_told(error)}") from None

        return wait

    def start(self, on_loss: Callable[[], None]) -> None:
        metadata = (*session_metadata(self._session), *WatchTimes.told().metadata())
        answers = self._stub.Run(iter(self._steps.get, None), metadata=metadata)
        self._answers, self._on_loss, self.heard_at = answers, on_loss, time.monotonic()

        def read() -> None:
            loss = Loss(Cause.OUTSIDE, f"{self.name} closed its link")
            try:
                for done in map(Status.from_wire, answers):
                    self.heard_at = time.monotonic()
                    self.disk_bytes = done.disk_bytes
                    if done.phase_seconds:  # once a second or so
                        self.phase_seconds, self.waited_seconds = done.phase_seconds, done.waited_seconds
                    if done.tick or not (done.number or done.error):  # a rank of before answers our rest as a step
                        continue
                    if done.error:
                        loss = Loss(Cause.read(done.cause), done.error)
                        break
                    self.finished_step, self.memory_bytes = done.number, done.memory_bytes
                    self.cache_bytes_per_token, self.free_bytes = done.cache_bytes_per_token, done.free_bytes
                    self.state_bytes, self.stored_bytes = done.state_bytes, done.stored_bytes
                    self.growing_layers = done.growing_layers
                    if done.saved or done.restored or done.failed:
                        self.disk_news.put(done)
                    self.traffic = Traffic(done.tensor_bytes, done.sent_bytes)
            except grpc.RpcError as error:
                loss = Loss(Cause.OUTSIDE, f"{self.name} is gone: {why_failed(error)}")
            self.lose(loss)

        threading.Thread(target=read, name=f"rank-{self.rank}", daemon=True).start()

    def lose(self, loss: Loss, hangs: bool = False) -> None:
        """Take it for lost; one that hangs is asked to end. The first word counts: what follows is because of it."""
        with self._losing:
            if self.loss or self._closed:
                return
            self.loss = loss
        log.error("%s", loss.told)
        if hangs:
            self._ask_to_leave()
        self._on_loss()
        # If it lives, or wakes up, it hears that nobody listens any more.
        if self._answers:
            self._answers.cancel()

    def _ask_to_leave(self) -> None:
        try:
            self._stub.Leave(rank_pb2.LeaveRequest(session=self._session), timeout=LEAVE_SECONDS)
        except grpc.RpcError as error:
            log.info("%s was asked to leave: %s", self.name, why_failed(error))

    def ping(self) -> Ping:
        """Its monotonic clock between two looks at ours."""
        asked = time.monotonic()
        there = self._stub.Time(rank_pb2.TimeRequest(), timeout=TRACE_SECONDS).seconds
        return Ping(asked, there, time.monotonic())

    def record(self, seconds: float, most_spans: int) -> None:
        wanted = rank_pb2.RecordRequest(session=self._session, seconds=seconds, most_spans=most_spans)
        self._stub.Record(wanted, timeout=TRACE_SECONDS)

    def take_recording(self) -> trace_pb2.Recording:
        return self._stub.TakeRecording(rank_pb2.TakeRecordingRequest(session=self._session), timeout=TRACE_SECONDS)

    def send(self, message: rank_pb2.Step, timeout: float) -> None:
        try:
            self._steps.put(message, timeout=timeout)
        except queue.Full:
            raise RankLost(f"{self.name} took no step for {timeout:g} s") from None

    def unload(self) -> grpc.Future | None:
        """Ask it to give its memory back; None where it ends anyway: with its link, as a rank in a collective does, or
        with the leader, whose supervisor started it too when they meet on a socket of this machine.
        """
        if self._in_collective or self.address.startswith("unix:"):
            return None
        return self._stub.Unload.future(rank_pb2.UnloadRequest(session=self._session), timeout=UNLOAD_SECONDS)

    def close(self) -> None:
        with self._losing:
            self._closed = True
        with contextlib.suppress(queue.Full):
            self._steps.put_nowait(None)
        self._channel.close()
        self._door.close()


class FollowerGroup:
    """All ranks but the leader: sent every step, watched while the leader waits for them."""

    def __init__(
        self, followers: Sequence[Follower], side: LeadingSide, patience: StepPatience, collective: bool = False
    ) -> None:
        """`collective`: ranks meet inside MLX, each in the other's forward, so that one's failure may be another's."""
        self.followers = tuple(followers)
        self.stages, self.depth, self.lookahead = side.stages, side.depth, side.lookahead
        self._side = side
        self._patience = patience
        self._collective = collective
        self._lost = threading.Event()
        self._in_order = True
        self._left = threading.Event()
        self._waiting_for: Step | None = None
        self._waiting_since = 0.0
        self._own_loss: Loss | None = None
        """Of a step that does not end though no follower is behind."""
        self.farewell: Callable[[str], None] = lambda reason: None
        """Called with the reason before this process is left in the middle of a collective."""
        for follower in followers:
            follower.start(self._lose)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @property
    def sum_seconds(self) -> float | None:
        return self._side.sum_seconds

    def _lose(self) -> None:
        """A rank has failed. Called from the thread that reads its answers, or from the watchdog."""
        self._lost.set()
        self._side.abandon("a rank is gone")

    def send(self, step: Step) -> None:
        message = step_to_wire(step)
        try:
            for follower in self.followers:
                follower.send(message, self._patience.unseen)
        except RankLost:
            self._in_order = False
            raise

    def rest(self) -> None:
        for follower in self.followers:
            follower.send(rank_pb2.Step(rest=True), self._patience.unseen)

    def receive(self, step: Step) -> list[mx.array] | None:
        with self.waiting(step):
            try:
                return self._side.receive(step)
            except LinkLost as error:
                self._in_order = False
                raise self._lost_rank(str(error)) from error

    def share(self, tokens: mx.array, outputs: list[mx.array]) -> mx.array:
        return self._side.share(tokens, outputs)

    def check(self) -> None:
        if self._lost.is_set():
            raise self._lost_rank("")

    @contextlib.contextmanager
    def naming_the_lost(self) -> Iterator[None]:
        """Around whole turns: MLX says in its own words that a collective has lost its peer."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            self._in_order = False
            raise_if_gpu_lost(error)
            if not self._collective:
                # Nobody else is in this process's forward.
                log.exception("a step failed on rank 0")
                raise RankLost(f"rank 0 failed: {error}", cause_of(error)) from error
            # Who it was, its control link tells a moment later; if it was nobody, it was this one.
            if isinstance(error, MemoryError) or not self._lost.wait(BLAME_SECONDS):
                raise RankLost(f"rank 0 failed: {error}", cause_of(error)) from error
            raise self._lost_rank(str(error)) from error

    def close(self, unload: bool = True) -> None:
        self._left.set()
        if unload and self._in_order and not self._lost.is_set():
            unload_all(self.followers)
        for follower in self.followers:
            follower.close()
        self._side.close()

    @contextlib.contextmanager
    def waiting(self, step: Step, over: bool = False) -> Iterator[None]:
        """Around whatever may wait for another rank: a collective that lost its peer never returns."""
        # In this order: the watchdog must never see a step with the time of the one before.
        self._waiting_since = since = time.monotonic()
        self._waiting_for = step
        try:
            yield
        finally:
            self._waiting_for = None
        self._patience.took(step, time.monotonic() - since, over)

    def _watch(self) -> None:
        """Sees who is silent, and who hangs. Only leaving the process ends a stuck collective."""
        times = WatchTimes.told()
        looks = Looks(time.monotonic(), times.look_seconds)
        while not self._lost.wait(times.look_seconds):
            if self._left.is_set():
                return
            now = time.monotonic()
            looks.look(now, times.look_seconds)
            self._find_silent(looks, now, times.silence_seconds)
            self._find_stuck(looks, now)
        deadline = time.monotonic() + STUCK_SECONDS
        while self._waiting_for is None or time.monotonic() < deadline:
            if self._left.wait(0.1):
                return
        lost = self._lost_rank("")
        log.critical("%s; leaving", lost)
        self.farewell(str(lost))
        os._exit(exit_code(lost.loss.cause))

    def _find_silent(self, looks: Looks, now: float, silence: float) -> None:
        for follower in self.followers:
            quiet = looks.quiet(follower.heard_at, now)
            if silence and quiet > silence:
                follower.lose(Loss(Cause.OUTSIDE, f"{follower.name}: no sign of life for {quiet:.1f} s"))

    def _find_stuck(self, looks: Looks, now: float) -> None:
        step = self._waiting_for
        if step is None or self._lost.is_set():
            return
        waited = looks.quiet(self._waiting_since, now)
        if waited <= self._patience.allowed(step):
            return
        late = self._last()
        if late.finished_step < step.number:
            behind = f"it finished step {late.finished_step}, the last of all"
            told = f"{late.name} hangs: nothing came for {waited:.0f} s, and {behind}"
            late.lose(Loss(Cause.FAULT, told), hangs=True)
        else:
            told = f"every other rank finished step {step.number}, and rank 0 waited {waited:.0f} s for its end"
            self._own_loss = Loss(Cause.FAULT, told)
            self._lose()

    def _last(self) -> Follower:
        """The first rank in the chain that is behind is the one to look at."""
        return min(self.followers, key=lambda follower: (follower.finished_step, -follower.rank))

    def _lost_rank(self, what: str) -> RankLost:
        """Who is lost, or else `what` was seen, and of whom it may come."""
        losses = [loss for loss in (*(follower.loss for follower in self.followers), self._own_loss) if loss]
        if losses:
            return RankLost("; ".join(loss.told for loss in losses), gravest(losses).cause)
        late = self._last()
        return RankLost(f"{what}; {late.name} finished step {late.finished_step}, the last of all")


def unload_all(followers: Sequence[Follower]) -> None:
    """A rank that is still busy does it later: what it was asked for stays in its queue."""
    asked = [(follower, call) for follower in followers if (call := follower.unload()) is not None]
    for follower, call in asked:
        try:
            call.result()
        except grpc.RpcError as error:
            log.info("%s has not said that it let go of the model: %s", follower.name, why_failed(error))


OTHERS_SECONDS = 5.0
"""Once one rank has failed, how long the others may still say that they failed too."""


def load_all(
    followers: Sequence[Follower],
    request: LoadRequest,
    own: Callable[[], None],
    progress: Callable[[int, int, int], None],
    timeout: float,
) -> None:
    """Every rank loads at the same time, the leader (`own`) on this thread. Raises what every failing rank said."""
    failures: dict[int, str] = {}
    changed = threading.Condition()
    left = {follower.rank for follower in followers}

    def load(rank: int, wait: Callable[[Callable[[int, int], None]], None]) -> None:
        failure = None
        try:
            wait(lambda done, total: progress(rank, done, total))
        except CannotForm as error:
            failure = str(error)
        with changed:
            left.discard(rank)
            if failure:
                failures[rank] = failure
            changed.notify_all()

    # All are asked before any is waited for. `own` may keep Python's lock until all have met: a rank that a thread had
    # yet to ask would never come.
    asked = [(follower.rank, follower.begin_load(request, timeout)) for follower in followers]
    for rank, wait in asked:
        threading.Thread(target=load, args=(rank, wait), name=f"load-{rank}", daemon=True).start()
    try:
        own()
    except (LoadError, SplitError, CannotJoin) as error:
        failures[0] = f"rank 0 cannot load: {error}"
    except SystemExit:
        unload_all(followers)
        raise
    with changed:
        changed.wait_for(lambda: not left or bool(failures), timeout)
        changed.wait_for(lambda: not left, OTHERS_SECONDS if failures else timeout)
    if failures:
        unload_all(followers)
        raise CannotForm("; ".join(failures[rank] for rank in sorted(failures)))


def _told(error: grpc.RpcError) -> str:
    return own_words(error) or f"{why_failed(error)}; its own log says more"
