"""A rank that follows: waits for the leader, loads its slice, runs the steps it is sent.

gRPC's threads only put things into queues; the main thread owns MLX and does everything in the order it came.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import mlx.core as mx

from chorus import __version__
from chorus.messages.proto import rank_pb2 as wire
from chorus.messages.proto import rank_pb2_grpc
from chorus.messages.rank import Step, step_from_wire
from chorus.planning.split import BadSplit
from chorus.platform import device
from chorus.platform.memory import device_memory, resident_memory
from chorus.platform.process import beats
from chorus.platform.process.beats import Phase
from chorus.platform.process.exits import EXIT_LEADER_GONE
from chorus.rank.join import join_group
from chorus.rank.load import LoadedShard, LoadError
from chorus.rank.member import Member, member_of
from chorus.rank.model_finder import ModelFinder, leaders_path
from chorus.rank.seat import take_seat
from chorus.transport.channel import open_server
from chorus.transport.grpc_link import session_of, tensor_service
from chorus.transport.links import Inbox, LinkLost
from chorus.transport.ports import HeldPort

log = logging.getLogger("chorus.rank")

SERVICE_THREADS = 8
PUT_TIMEOUT_SECONDS = 600.0
MEMORY_SECONDS = 1.0
SPENT_SECONDS = 10.0
"""A rank that joined a collective and could not load is of no use to the next leader. It leaves when this one has had
the time to tell why."""


@dataclass(frozen=True)
class Load:
    request: wire.LoadRequest
    answers: queue.SimpleQueue[wire.LoadProgress | Exception]


@dataclass(frozen=True)
class Run:
    session: int
    step: Step
    answers: queue.SimpleQueue[wire.Done | None]


@dataclass(frozen=True)
class Forget:
    """The leader of a session is gone: its sequences are nobody's. Its word may come when another one leads."""

    session: int


@dataclass(frozen=True)
class Unload:
    """The leader stopped in order: another model may come, or none for a long time."""

    session: int
    answers: queue.SimpleQueue[wire.UnloadReply]


@dataclass(frozen=True)
class Stop:
    pass


Command = Load | Run | Forget | Unload | Stop


class RankService(rank_pb2_grpc.RankServicer):
    def __init__(self, rank: int, commands: queue.SimpleQueue[Command], meeting: HeldPort) -> None:
        self._rank = rank
        self._commands = commands
        self._meeting = meeting

    def Hello(self, request: wire.HelloRequest, context: grpc.ServicerContext) -> wire.HelloReply:
        return wire.HelloReply(
            version=__version__,
            rank=self._rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=device.backend(),
            collective_port=self._meeting.number(),
        )

    def Load(self, request: wire.LoadRequest, context: grpc.ServicerContext) -> Iterator[wire.LoadProgress]:
        answers: queue.SimpleQueue[wire.LoadProgress | Exception] = queue.SimpleQueue()
        self._commands.put(Load(request, answers))
        while True:
            answer = answers.get()
            if isinstance(answer, Exception):
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"rank {self._rank}: {answer}")
                raise answer
            yield answer
            if answer.HasField("loaded"):
                return

    def Run(self, requests: Iterator[wire.Step], context: grpc.ServicerContext) -> Iterator[wire.Done]:
        answers: queue.SimpleQueue[wire.Done | None] = queue.SimpleQueue()
        context.add_callback(lambda: answers.put(None))
        session = session_of(context)

        def read() -> None:
            try:
                for message in requests:
                    self._commands.put(Run(session, step_from_wire(message), answers))
            except grpc.RpcError as error:
                log.info("the leader is gone: %s", error)
            finally:
                self._commands.put(Forget(session))
                answers.put(None)

        threading.Thread(target=read, name="steps", daemon=True).start()
        yield from iter(answers.get, None)

    def Unload(self, request: wire.UnloadRequest, context: grpc.ServicerContext) -> wire.UnloadReply:
        answers: queue.SimpleQueue[wire.UnloadReply] = queue.SimpleQueue()
        # A leader that waits no longer, or a server that stops, must not leave this thread waiting.
        context.add_callback(lambda: answers.put(wire.UnloadReply()))
        self._commands.put(Unload(request.session, answers))
        return answers.get()


class _Memory:
    """This rank's memory, as last seen. Looking takes a millisecond, in which the tensors just sent would not leave."""

    def __init__(self) -> None:
        self.resident = self.free = 0
        self._seen_at = -MEMORY_SECONDS

    def look_again(self) -> None:
        if time.monotonic() - self._seen_at >= MEMORY_SECONDS:
            self.resident, self.free = resident_memory(), device_memory(mx).available
            self._seen_at = time.monotonic()


class Worker:
    def __init__(self, rank: int, address: str, find_model: ModelFinder = leaders_path) -> None:
        self._rank = rank
        self._find_model = find_model
        self._session = 0
        """Whose member this rank is: the leader's that asked it to load last."""
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._inbox = Inbox()
        self._server, self.address = open_server(address, SERVICE_THREADS)
        self._meeting = HeldPort()
        rank_pb2_grpc.add_RankServicer_to_server(RankService(rank, self._commands, self._meeting), self._server)
        self._server.add_generic_rpc_handlers((tensor_service(self._inbox, PUT_TIMEOUT_SECONDS),))
        self._member: Member | None = None
        self._memory = _Memory()
        self._in_collective = False
        self._leave_at: float | None = None

    def stop(self) -> None:
        self._commands.put(Stop())

    def serve(self) -> int:
        """Follow until stopped; the exit code says whether somebody should start this rank again."""
        self._server.start()
        log.info("rank %d waits for its leader on %s", self._rank, self.address)
        beats.enter(Phase.SERVING)
        code = 0
        while True:
            try:
                command = self._commands.get(timeout=self._patience())
            except queue.Empty:
                code = EXIT_LEADER_GONE
                break
            match command:
                case Load(request, answers):
                    with beats.during(Phase.LOADING):
                        self._load(request, answers)
                case Run(session, step, answers):
                    answers.put(self._run(session, step))
                case Forget(session) if session != self._session:
                    log.info("a leader of before is gone too; nothing of it was left")
                case Forget():
                    self._forget()
                    if self._in_collective:
                        code = EXIT_LEADER_GONE
                        break
                case Unload(session, answers) if session != self._session:
                    answers.put(wire.UnloadReply())
                case Unload(_, answers):
                    with beats.during(Phase.LOADING):
                        self._unload()
                    answers.put(wire.UnloadReply())
                    if self._in_collective:
                        code = EXIT_LEADER_GONE
                        break
                case Stop():
                    break
        self._server.stop(grace=0.5).wait(2.0)
        return code

    def _patience(self) -> float | None:
        return None if self._leave_at is None else max(0.0, self._leave_at - time.monotonic())

    def _load(self, request: wire.LoadRequest, answers: queue.SimpleQueue[wire.LoadProgress | Exception]) -> None:
        if self._leave_at is not None:
            answers.put(RuntimeError("its group could not load and it is about to start again: try again"))
            return
        self._unload()
        self._session = request.session
        try:
            self._member, shard = self._take_place(request, lambda done, total: self._tell_load(answers, done, total))
        except Exception as error:
            # Whatever a leader asks for, and whatever its model does, the rank is there for the next one.
            known = isinstance(error, LoadError | BadSplit | RuntimeError | ValueError | OSError)
            log.error("%s", error, exc_info=not known)
            answers.put(error)
            if self._in_collective:
                self._leave_at = time.monotonic() + SPENT_SECONDS
            return
        held = f"layers {shard.stage.first}-{shard.stage.last - 1}"
        log.info("rank %d holds %s, %.0f MB: %s", self._rank, held, shard.weight_bytes / 1e6, shard.policy.reason)
        loaded = wire.Loaded(
            first_layer=shard.stage.first,
            last_layer=shard.stage.last,
            weight_bytes=shard.weight_bytes,
            dtype=shard.policy.dtype,
            unpacked=shard.policy.dequantize,
            batches=shard.stage.batches,
        )
        answers.put(wire.LoadProgress(done_bytes=shard.weight_bytes, total_bytes=shard.weight_bytes, loaded=loaded))

    def _take_place(
        self, request: wire.LoadRequest, progress: Callable[[int, int], None]
    ) -> tuple[Member, LoadedShard]:
        self._in_collective = request.transport != "grpc"
        try:
            path = self._find_model(request)
        except ValueError:
            self._meeting.release()
            if self._in_collective:
                # The others wait for this rank inside MLX, where nobody could tell them that it will not come.
                join_group(self._rank, request)
            raise
        self._meeting.release()
        seat = take_seat(self._rank, path, request, self._inbox, progress)
        return member_of(seat), seat.shard

    def _run(self, session: int, step: Step) -> wire.Done:
        if session != self._session:
            return wire.Done(number=step.number, error=f"rank {self._rank} follows another leader now")
        if self._member is None:
            return wire.Done(number=step.number, error=f"rank {self._rank} has no model loaded")
        try:
            self._member.run(step)
        except (LinkLost, RuntimeError, ValueError) as error:
            log.exception("step %d failed", step.number)
            return wire.Done(number=step.number, error=f"rank {self._rank} failed at step {step.number}: {error}")
        beats.finished(step.number)
        traffic = self._member.traffic
        self._memory.look_again()
        return wire.Done(
            number=step.number,
            memory_bytes=self._memory.resident,
            cache_bytes_per_token=self._member.cache_bytes_per_token,
            free_bytes=self._memory.free,
            tensor_bytes=traffic.tensor_bytes,
            sent_bytes=traffic.sent_bytes,
        )

    def _tell_load(self, answers: queue.SimpleQueue[wire.LoadProgress | Exception], done: int, total: int) -> None:
        beats.loaded(done, total)
        answers.put(wire.LoadProgress(done_bytes=done, total_bytes=total))

    def _forget(self) -> None:
        if self._member:
            self._member.forget()
        self._inbox.clear(self._session)

    def _unload(self) -> None:
        if self._member is None:
            return
        self._member.close()
        self._member = None
        self._inbox.clear()
        beats.loaded(0, 0)
        # Modules refer to each other in circles: without this the weights stay until Python happens to look.
        gc.collect()
        mx.clear_cache()
        log.info("rank %d let go of its model, %.0f MB are left", self._rank, resident_memory() / 1e6)
