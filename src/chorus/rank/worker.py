"""A rank that follows: waits for the leader, loads its slice, runs the steps it is sent.

gRPC's threads only put things into queues; the main thread owns MLX and does everything in the order it came.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import mlx.core as mx

from chorus import __version__
from chorus.messages.calls import why_failed
from chorus.messages.load import Greeting, Loaded, LoadProgress, LoadRequest, Status
from chorus.messages.proto import rank_pb2, rank_pb2_grpc, trace_pb2
from chorus.messages.protocol import PROTOCOL
from chorus.messages.rank import Step, step_from_wire
from chorus.planning.split import SplitError
from chorus.platform import faults, rank_threads
from chorus.platform.accelerator import device
from chorus.platform.memory.amounts import left_for_cache, resident_memory
from chorus.platform.memory.freed_buffers import FreedBuffers, give_back_freed
from chorus.platform.memory.mac import Budget
from chorus.platform.memory.metal import GpuLost, gpu_lost, held_memory
from chorus.platform.process import beats
from chorus.platform.process.beats import Phase
from chorus.platform.process.exits import EXIT_FAULT, EXIT_LEADER_GONE
from chorus.platform.process.losses import Cause, cause_of, exit_code, last_loss
from chorus.platform.process.timing import WatchTimes
from chorus.platform.storage.files import write_whole
from chorus.rank.join import connect
from chorus.rank.load import LoadError
from chorus.rank.model_finder import ModelFinder, leaders_path
from chorus.rank.parallel import FollowingSide, Part, rejoin, take_part
from chorus.security.names import located
from chorus.telemetry.phases import COMPUTE, IDLE, LEADER, MOST_SPANS, SCHEDULE, WAIT, clock
from chorus.telemetry.trace.wire import MOST_SECONDS, recording_to_wire
from chorus.transport import catalog
from chorus.transport.channel import open_server
from chorus.transport.grpc_link import session_of, tensor_service
from chorus.transport.links import Inbox, LinkLost
from chorus.transport.ports import HeldPort
from chorus.transport.security import PRIVATE, Security

log = logging.getLogger("chorus.rank")

SERVICE_THREADS = 8
PUT_TIMEOUT_SECONDS = 600.0
MEMORY_SECONDS = 1.0
IDLE_SECONDS = 1.0
"""Without a step for so long, a rank gives back the buffers that MLX keeps for the next one."""
SPENT_SECONDS = 10.0
"""A rank that joined a collective and could not load, or whose GPU failed, is of no use to the next leader. It leaves
when this one has had the time to tell why."""


@dataclass(frozen=True)
class Load:
    request: LoadRequest
    answers: queue.SimpleQueue[LoadProgress | Exception]


@dataclass(frozen=True)
class Run:
    session: int
    step: Step
    answers: queue.SimpleQueue[Status | None]


@dataclass(frozen=True)
class Rest:
    """The leader has nothing to do: nobody waits for anybody until it sends a step again."""

    session: int


@dataclass(frozen=True)
class Forget:
    """The leader of a session is gone: its sequences are nobody's. Its word may come when another one leads."""

    session: int


@dataclass(frozen=True)
class Unload:
    """The leader stopped in order: another model may come, or none for a long time."""

    session: int
    done: threading.Event


@dataclass(frozen=True)
class Stop:
    pass


Command = Load | Run | Rest | Forget | Unload | Stop


class RankService(rank_pb2_grpc.RankServicer):
    def __init__(
        self,
        rank: int,
        commands: queue.SimpleQueue[Command],
        meeting: HeldPort,
        inbox: Inbox,
        abandon: Callable[[], None],
        session: Callable[[], int],
        disk_bytes: Callable[[], int],
    ) -> None:
        """`abandon` makes the main thread give up what it does for the leader before this one; `session` is the load
        that the rank belongs to now; `disk_bytes` is what it keeps on its disk, which goes on being written and erased
        when no step runs.
        """
        self._rank = rank
        self._commands = commands
        self._meeting = meeting
        self._inbox = inbox
        self._abandon = abandon
        self._session = session
        self._disk_bytes = disk_bytes
        self._loss = last_loss()

    def Hello(self, request: rank_pb2.HelloRequest, context: grpc.ServicerContext) -> rank_pb2.HelloReply:
        return Greeting(
            version=__version__,
            protocol=PROTOCOL,
            rank=self._rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=device.backend(),
            collective_port=self._meeting.number(),
            loss_cause=self._loss.cause if self._loss else "",
            loss_told=self._loss.told if self._loss else "",
        ).to_wire()

    def Load(self, request: rank_pb2.LoadRequest, context: grpc.ServicerContext) -> Iterator[rank_pb2.LoadProgress]:
        answers: queue.SimpleQueue[LoadProgress | Exception] = queue.SimpleQueue()
        # It may wait for a rank that is gone, and its steps are of use to nobody now.
        self._abandon()
        self._commands.put(Load(LoadRequest.from_wire(request), answers))
        while True:
            answer = answers.get()
            if isinstance(answer, Exception):
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"rank {self._rank}: {answer}")
                raise answer
            yield answer.to_wire()
            if answer.loaded:
                return

    def Run(self, requests: Iterator[rank_pb2.Step], context: grpc.ServicerContext) -> Iterator[rank_pb2.Done]:
        answers: queue.SimpleQueue[Status | None] = queue.SimpleQueue()
        context.add_callback(lambda: answers.put(None))
        session = session_of(context)
        times = WatchTimes.told(context.invocation_metadata())

        def read() -> None:
            try:
                for message in requests:
                    command = Rest(session) if message.rest else Run(session, step_from_wire(message), answers)
                    self._commands.put(command)
            except grpc.RpcError as error:
                log.info("the leader is gone: %s", why_failed(error))
            finally:
                # The main thread may wait for tensors, and whoever was to send them may be gone too.
                self._inbox.close("the leader is gone", session)
                self._commands.put(Forget(session))
                answers.put(None)

        threading.Thread(target=read, name="steps", daemon=True).start()
        while (answer := self._next_word(answers, times.tick_seconds)) is not None:
            yield answer.to_wire()

    def _next_word(self, answers: queue.SimpleQueue[Status | None], tick_seconds: float) -> Status | None:
        try:
            return answers.get(timeout=tick_seconds)
        except queue.Empty:
            return Status(
                number=0,
                tick=True,
                disk_bytes=self._disk_bytes(),
                phase_seconds=tuple(clock.seconds()),
                waited_seconds=tuple(clock.waited()),
            )

    def Unload(self, request: rank_pb2.UnloadRequest, context: grpc.ServicerContext) -> rank_pb2.UnloadReply:
        done = threading.Event()
        # A leader that waits no longer, or a server that stops, must not leave this thread waiting.
        context.add_callback(done.set)
        self._commands.put(Unload(request.session, done))
        done.wait()
        return rank_pb2.UnloadReply()

    def Leave(self, request: rank_pb2.LeaveRequest, context: grpc.ServicerContext) -> rank_pb2.LeaveReply:
        self._refuse_others(request.session, context)
        log.critical("the leader says that rank %d hangs; leaving from here:", self._rank)
        faulthandler.dump_traceback()
        # The main thread is stuck in a step, where nothing reaches it.
        os._exit(EXIT_FAULT)

    def Time(self, request: rank_pb2.TimeRequest, context: grpc.ServicerContext) -> rank_pb2.TimeReply:
        return rank_pb2.TimeReply(seconds=time.monotonic())

    def Record(self, request: rank_pb2.RecordRequest, context: grpc.ServicerContext) -> rank_pb2.RecordReply:
        self._refuse_others(request.session, context)
        clock.record(min(request.seconds, MOST_SECONDS), min(request.most_spans, MOST_SPANS))
        return rank_pb2.RecordReply()

    def TakeRecording(
        self, request: rank_pb2.TakeRecordingRequest, context: grpc.ServicerContext
    ) -> trace_pb2.Recording:
        self._refuse_others(request.session, context)
        return recording_to_wire(clock.take())

    def _refuse_others(self, session: int, context: grpc.ServicerContext) -> None:
        if not session or session != self._session():
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"rank {self._rank} follows another leader now")


class _Memory:
    """This rank's memory, as last seen. Looking takes a millisecond, in which the tensors just sent would not leave."""

    def __init__(self) -> None:
        self.resident = self.free = 0
        self.budget: Budget | None = None
        """Of the model that is loaded, on a Mac."""
        self._seen_at = -MEMORY_SECONDS

    def look_again(self) -> bool:
        """Whether it was time to."""
        due = time.monotonic() - self._seen_at >= MEMORY_SECONDS
        if due:
            self.resident, self.free = resident_memory(mx), left_for_cache(mx, self.budget)
            self._seen_at = time.monotonic()
            beats.holds(held_memory(mx))
        return due


class Worker:
    def __init__(
        self,
        rank: int,
        address: str,
        find_model: ModelFinder = leaders_path,
        security: Security = PRIVATE,
        group: str = "",
    ) -> None:
        """With a `group` it is this one's for its whole life: it refuses others, and ends when it is let go."""
        self._rank = rank
        self._group = group
        self._find_model = find_model
        self._security = security
        self._session = 0
        """The load that this rank belongs to: of the leader that asked last."""
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._inbox = Inbox()
        self._server, self.address = open_server(address, SERVICE_THREADS, security)
        self._meeting = HeldPort()
        service = RankService(
            rank,
            self._commands,
            self._meeting,
            self._inbox,
            self._abandon,
            lambda: self._session,
            lambda: part.runner.disk.nbytes if (part := self._part) else 0,
        )
        rank_pb2_grpc.add_RankServicer_to_server(service, self._server)
        self._server.add_generic_rpc_handlers((tensor_service(self._inbox, PUT_TIMEOUT_SECONDS),))
        self._part: FollowingSide | None = None
        self._held: tuple[LoadRequest, Part] | None = None
        """What this rank has loaded, and for which request."""
        self._abandoned: int | None = None
        """The session whose steps are of use to nobody any more."""
        self._memory = _Memory()
        self._in_collective = False
        self._leave_at: float | None = None
        self._freed_buffers = FreedBuffers(mx)
        self._between = IDLE
        """The phase that it is in while no command comes."""
        self._lost: Exception | None = None
        """By which the GPU was lost."""

    def stop(self) -> None:
        self._commands.put(Stop())

    def serve(self, address_file: Path | None = None) -> int:
        """Follow until stopped; the exit code says whether somebody should start this rank again. Where it listens is
        left in `address_file`, for who could not know its port."""
        self._server.start()
        if address_file:
            write_whole(address_file, self.address.encode())
        log.info("%s waits for its leader", located(f"rank {self._rank}", self.address))
        beats.enter(Phase.SERVING)
        code = 0
        while True:
            try:
                command = self._next_command()
            except queue.Empty:
                code = EXIT_LEADER_GONE
                break
            self._between = IDLE
            match command:
                case Load(request, answers):
                    with beats.during(Phase.LOADING):
                        self._load(request, answers)
                case Run(session, step, answers):
                    answers.put(self._run(session, step))
                    self._between = COMPUTE if self._part and self._part.computes_on else WAIT
                    if self._lost:
                        log.critical("%s", GpuLost(self._lost))
                        code = exit_code(cause_of(self._lost))
                        break
                case Rest():
                    pass
                case Forget(session) if session != self._session:
                    log.info("a leader of before is gone too; nothing of it was left")
                case Forget():
                    self._forget()
                    if self._in_collective:
                        code = EXIT_LEADER_GONE
                        break
                case Unload(session, done) if session != self._session:
                    done.set()
                case Unload(_, done):
                    with beats.during(Phase.LOADING):
                        self._unload()
                    done.set()
                    if self._in_collective or self._group:
                        code = EXIT_LEADER_GONE
                        break
                case Stop():
                    break
        self._server.stop(grace=0.5).wait(2.0)
        return code

    def _next_command(self) -> Command:
        if self._commands.empty():
            clock.enter(self._between, LEADER)
        if self._freed_buffers.any:
            try:
                return self._commands.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                self._freed_buffers.give_back()
                beats.holds(held_memory(mx))
        return self._commands.get(timeout=self._patience())

    def _patience(self) -> float | None:
        return None if self._leave_at is None else max(0.0, self._leave_at - time.monotonic())

    def _load(self, request: LoadRequest, answers: queue.SimpleQueue[LoadProgress | Exception]) -> None:
        if self._leave_at is not None:
            answers.put(RuntimeError("its group could not load and it is about to start again: try again"))
            return
        if self._group and request.group != self._group:
            answers.put(ValueError("this process was started for another leader: ask its worker for a place"))
            return
        if not self._holds(request):
            self._unload()
        self._session = request.session
        try:
            part = self._take_place(request, lambda done, total: self._tell_load(answers, done, total))
        except Exception as error:
            # Whatever a leader asks for, and whatever its model does, the rank is there for the next one.
            known = isinstance(error, LoadError | SplitError | RuntimeError | ValueError | OSError)
            log.error("%s", error, exc_info=not known)
            answers.put(error)
            if self._in_collective or gpu_lost(error):
                self._leave_at = time.monotonic() + SPENT_SECONDS
            return
        kept = self._held is not None
        self._held, self._part = (request, part), part.follow()
        shard, disk = part.shard, part.disk
        self._memory.budget = shard.budget
        held = f"layers {shard.stage.first}-{shard.stage.last - 1}"
        reason = "kept for another leader" if kept else shard.policy.reason
        log.info("rank %d holds %s, %.0f MB: %s", self._rank, held, shard.weight_bytes / 1e6, reason)
        loaded = Loaded(
            first_layer=shard.stage.first,
            last_layer=shard.stage.last,
            weight_bytes=shard.weight_bytes,
            dtype=shard.dtype,
            form=shard.policy.form,
            threads=rank_threads(),
            batches=shard.stage.batches,
            files=tuple(disk.held_keys()),
            disk=disk.folder is not None,
        )
        answers.put(LoadProgress(shard.weight_bytes, shard.weight_bytes, loaded))

    def _holds(self, request: LoadRequest) -> bool:
        """Whether this rank can go on with what it has. One that is in a collective has its group for good."""
        return self._held is not None and not self._in_collective and self._held[0].same_part(request)

    def _take_place(self, request: LoadRequest, progress: Callable[[int, int], None]) -> Part:
        if self._held:
            assert self._part is not None
            self._part.close()
            self._meeting.release()
            return rejoin(self._rank, self._held[1], request, self._inbox, self._security)
        self._in_collective = catalog.get(request.transport).collective
        try:
            path = self._find_model(request)
        except ValueError:
            self._meeting.release()
            if self._in_collective:
                # The others wait for this rank inside MLX, where nobody could tell them that it will not come.
                connect(self._rank, request, self._inbox, self._security).close()
            raise
        self._meeting.release()
        return take_part(self._rank, path, request, self._inbox, progress, self._security)

    def _run(self, session: int, step: Step) -> Status:
        clock.enter(COMPUTE)
        clock.step = step.number
        if session != self._session:
            return Status(number=step.number, error=f"rank {self._rank} follows another leader now")
        if self._part is None:
            return Status(number=step.number, error=f"rank {self._rank} has no model loaded")
        if session == self._abandoned:
            return Status(number=step.number, error=f"rank {self._rank} was asked to load again")
        self._freed_buffers.used()
        try:
            faults.at("begin", self._rank, step.number)
            self._part.run(step)
            faults.at("answer", self._rank, step.number)
        except (LinkLost, RuntimeError, ValueError, MemoryError) as error:
            if gpu_lost(error):
                self._lost = error
            if isinstance(error, LinkLost):
                log.warning("step %d is given up: %s", step.number, error)
            else:
                log.exception("step %d failed", step.number)
            cause = Cause.OUTSIDE if isinstance(error, LinkLost) else cause_of(error)
            told = f"rank {self._rank} failed at step {step.number}: {error}"
            return Status(number=step.number, error=told, cause=cause)
        clock.enter(SCHEDULE)
        beats.finished(step.number)
        traffic, runner = self._part.traffic, self._part.runner
        news = runner.disk.news()
        # As seldom as the memory is looked at: a step has better things to do.
        tells = self._memory.look_again()
        return Status(
            number=step.number,
            memory_bytes=self._memory.resident,
            cache_bytes_per_token=runner.cache_bytes_per_token,
            state_bytes=runner.state_bytes,
            growing_layers=runner.growing_layers,
            stored_bytes=runner.stored_bytes,
            saved=tuple(news.saved),
            restored=tuple(news.restored),
            failed=tuple(news.failed),
            disk_bytes=runner.disk.nbytes,
            free_bytes=self._memory.free,
            tensor_bytes=traffic.tensor_bytes,
            sent_bytes=traffic.sent_bytes,
            phase_seconds=tuple(clock.seconds()) if tells else (),
            waited_seconds=tuple(clock.waited()) if tells else (),
        )

    def _tell_load(self, answers: queue.SimpleQueue[LoadProgress | Exception], done: int, total: int) -> None:
        beats.loaded(done, total)
        answers.put(LoadProgress(done, total))

    def _abandon(self) -> None:
        """From another thread: what runs now for the leader of before is given up, and what waits behind it."""
        self._abandoned = self._session
        if part := self._part:
            part.abandon("the group forms anew")

    def _forget(self) -> None:
        if self._part:
            self._part.forget()
        self._inbox.clear(self._session)

    def _unload(self) -> None:
        if self._part is None:
            return
        self._part.close()
        self._part.runner.disk.close()
        self._part = self._held = None
        self._inbox.clear()
        beats.loaded(0, 0)
        # Modules refer to each other in circles: without this the weights stay until Python happens to look.
        gc.collect()
        mx.clear_cache()
        give_back_freed()
        beats.holds(held_memory(mx))
        log.info("rank %d let go of its model, %.0f MB are left", self._rank, resident_memory(mx) / 1e6)
