"""A leader's life: open the socket, form the group, load, warm up, serve, stop."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import FrameType

import mlx.core as mx

from chorus import __version__, platform
from chorus.config.engine import EngineSpec
from chorus.engine.figures import figures
from chorus.engine.leader import Command, Leader, StopLeader
from chorus.engine.lifecycle.group import Group, form_group
from chorus.engine.lifecycle.kept import open_index
from chorus.engine.lifecycle.recovery import recover
from chorus.engine.lifecycle.threads import ThreadWatch
from chorus.engine.lifecycle.warmup import choose_lanes, choose_threads, measure_chunks, warm_up
from chorus.engine.prefix.disk import FileList
from chorus.engine.ranks.followers import CannotForm, RankLost
from chorus.engine.ranks.tracing import CannotTrace, trace
from chorus.engine.scheduling.chunks import ChunkLimits
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits, within_memory
from chorus.engine.service import ServiceThread
from chorus.messages.engine import cache_facts_to_wire
from chorus.messages.figures import figures_to_wire
from chorus.messages.grammar import Grammar
from chorus.messages.load import ranks_here
from chorus.messages.proto import engine_pb2
from chorus.models.description import context_length
from chorus.planning.measured import remember_sum
from chorus.planning.split import SplitError
from chorus.platform.memory.amounts import left_for_cache, resident_memory
from chorus.platform.memory.metal import GpuLost
from chorus.platform.process import beats
from chorus.platform.process.beats import Phase
from chorus.platform.process.exits import EXIT_NO_MEMORY, EXIT_RANK_LOST, leave_reason
from chorus.platform.process.losses import Loss, cause_of, exit_code, gravest, last_loss
from chorus.platform.process.no_memory import out_of_memory
from chorus.platform.process.output import LogFile
from chorus.rank.load import LoadError
from chorus.rank.runner import Runner
from chorus.security.names import split_member
from chorus.telemetry import events
from chorus.telemetry.metrics.declared import ITERATION_TOKENS
from chorus.telemetry.metrics.histogram import Histogram
from chorus.telemetry.phases import clock
from chorus.telemetry.telling import tell
from chorus.text.grammar.client import Constraint, Grammars
from chorus.transport import catalog

log = logging.getLogger("chorus.engine")


class State(IntEnum):
    """How far an engine is, by the numbers that the protocol has for it."""

    STARTING = engine_pb2.STARTING
    LOADING = engine_pb2.LOADING
    WARMING = engine_pb2.WARMING
    READY = engine_pb2.READY
    BROKEN = engine_pb2.BROKEN
    RECOVERING = engine_pb2.RECOVERING


LIST = "list"
"""The file beside the leader's own files that says which there are on all ranks."""

PHASES = {
    State.STARTING: Phase.STARTING,
    State.LOADING: Phase.LOADING,
    State.WARMING: Phase.WARMING,
    State.READY: Phase.SERVING,
    State.BROKEN: Phase.ENDING,
    State.RECOVERING: Phase.RECOVERING,
}


@dataclass
class Engine:
    """What the service may ask while the main thread loads or serves."""

    spec: EngineSpec
    state: State = State.STARTING
    progress: float = 0.0
    detail: str = "starting"
    group: Group | None = None
    leader: Leader | None = None
    grammars: Grammars | None = None
    started_at: float = field(default_factory=time.time)
    loss: Loss | None = field(default_factory=last_loss)
    """How the engine before this one ended, or how this one's last lost rank did."""
    replaces: bool = field(default_factory=lambda: last_loss() is not None)
    """Whether an engine was lost before this one."""
    recoveries: engine_pb2.Recoveries = field(default_factory=engine_pb2.Recoveries)
    restored_before: int = 0
    """Tokens that had been read from disk when the last recovery began."""

    def enter(self, state: State, detail: str) -> None:
        self.state, self.detail = state, detail
        beats.enter(PHASES[state])
        report = log.error if state in (State.BROKEN, State.RECOVERING) else log.info
        report("%s: %s", state.name.lower(), detail)

    def waits_for(self, lost: str) -> None:
        self.enter(State.RECOVERING, f"{lost}; waiting until it is back")

    def has_loaded(self, fraction: float) -> None:
        """So much of what it does now: of its load, then of its warm-up."""
        self.progress = fraction

    def post(self, command: Command) -> bool:
        if self.leader is None or self.state not in (State.READY, State.RECOVERING):
            return False
        self.leader.post(command)
        return True

    async def open_grammar(
        self, grammar: Grammar, stop_tokens: frozenset[int], answered: tuple[int, ...]
    ) -> Constraint | None:
        return await self.grammars.open(grammar, stop_tokens, answered) if self.grammars else None

    def trace(self, steps: int, seconds: float) -> AsyncGenerator[engine_pb2.TraceReply, None]:
        group, leader = self.group, self.leader
        if group is None or leader is None or self.state is not State.READY:
            raise CannotTrace(f"the engine is not ready: {self.detail}")
        return trace(group.followers.followers, leader, steps, seconds)

    def close(self) -> None:
        if self.grammars:
            self.grammars.close()

    def stop(self, signal_number: int, frame: FrameType | None) -> None:
        if self.leader is None or self.state is State.RECOVERING:
            raise SystemExit(0)
        self.leader.post(StopLeader("the engine was stopped"))

    def describe(self) -> engine_pb2.Description:
        alone = len(self.spec.ranks) < 2
        description = engine_pb2.Description(
            state=self.state.name,
            progress=self.progress,
            detail=self.detail,
            version=__version__,
            model_path=str(self.spec.model_path),
            load_count=int(self.group is not None),
            started_at=self.started_at,
            transport=catalog.LOCAL.name if alone else self.spec.transport,
            parallel="single" if alone else self.spec.parallel,
            max_queue=self.spec.max_queue,
            loss=engine_pb2.Loss(cause=self.loss.cause, told=self.loss.told) if self.loss else None,
            recoveries=self.recoveries,
        )
        if self.group and self.leader:
            scheduler = self.leader.scheduler
            description.context_length = scheduler.limits.context
            description.vocabulary = scheduler.limits.vocabulary
            description.max_batch = scheduler.limits.max_batch
            description.running = scheduler.running
            description.queued = scheduler.queued
            description.step = self.leader.finished_step
            description.cache.CopyFrom(cache_facts_to_wire(scheduler.cache_facts()))
            taken = [self.group.disk.nbytes, *(follower.disk_bytes for follower in self.group.followers.followers)]
            restored = description.cache.restored_tokens - self.restored_before
            description.recoveries.restored_tokens = min(self.recoveries.tokens, restored)
            description.cache.disk_bytes, description.cache.disk_budget_bytes = max(taken), self.spec.disk_bytes
            description.ranks.extend(self._ranks(self.group, self.leader))
        return description

    def figures(self) -> engine_pb2.Figures:
        told = figures(self.describe(), self.replaces, self.leader.step_tokens if self.leader else None)
        return figures_to_wire(self.started_at, told)

    @staticmethod
    def _ranks(group: Group, leader: Leader) -> list[engine_pb2.RankDescription]:
        own = engine_pb2.RankDescription(
            rank=0,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=platform.device.backend(),
            dtype=group.shard.dtype,
            form=group.shard.policy.form,
            threads=platform.rank_threads(),
            first_layer=group.shard.stage.first,
            last_layer=group.shard.stage.last,
            weight_bytes=group.shard.weight_bytes,
            memory_bytes=resident_memory(mx),
            step=leader.finished_step,
            phase_seconds=clock.seconds(),
            waited_seconds=clock.waited(),
        )
        others = [
            engine_pb2.RankDescription(
                rank=follower.rank,
                host=follower.hello.host,
                pid=follower.hello.pid,
                device=follower.hello.device,
                dtype=follower.loaded.dtype,
                form=follower.loaded.form,
                threads=follower.loaded.threads,
                first_layer=follower.loaded.first_layer,
                last_layer=follower.loaded.last_layer,
                weight_bytes=follower.loaded.weight_bytes,
                memory_bytes=follower.memory_bytes,
                step=follower.finished_step,
                tensor_bytes=follower.traffic.tensor_bytes,
                sent_bytes=follower.traffic.sent_bytes,
                heard_seconds=max(0.0, time.monotonic() - follower.heard_at),
                phase_seconds=follower.phase_seconds,
                waited_seconds=follower.waited_seconds,
                lost=follower.loss is not None,
            )
            for follower in group.followers.followers
        ]
        return [own, *others]


def run(spec: EngineSpec) -> int:
    engine = Engine(spec)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, engine.stop)
    with contextlib.ExitStack() as cleanup:
        # Last of all: whose grammar still compiles hears from the service why it ends.
        cleanup.callback(engine.close)
        service = ServiceThread(spec.address, engine)
        service.start()
        cleanup.callback(service.stop)
        try:
            _start(engine, service, cleanup)
            log.info("stopped: %s", _serve(engine))
        except (LoadError, SplitError, CannotForm) as error:
            engine.enter(State.BROKEN, str(error))
            return leave_reason(str(error), spec.failure_file)
        except (RankLost, GpuLost) as error:
            engine.enter(State.BROKEN, str(error))
            service.refuse(_lost(str(error)))
            return _code(error, engine.group)
        except Exception as error:
            if engine.state in (State.READY, State.RECOVERING):
                raise
            log.exception("the engine failed before it served")
            engine.enter(State.BROKEN, f"{type(error).__name__}: {error}")
            return leave_reason(engine.detail, spec.failure_file)
    return 0


def _serve(engine: Engine) -> str:
    """Until stopped; why. A rank that is lost meanwhile is waited for, where the others can go on."""
    while True:
        group, leader = engine.group, engine.leader
        assert group
        assert leader
        engine.enter(State.READY, "ready")
        try:
            with group.followers.naming_the_lost():
                return leader.run()
        except RankLost as error:
            if not group.renewable:
                raise
            _recover(engine, group, leader, error)


def _recover(engine: Engine, group: Group, leader: Leader, lost: RankLost) -> None:
    began = time.monotonic()
    recovered = recover(engine.spec, group, leader, lost, engine.waits_for, engine.has_loaded)
    engine.group, engine.loss = recovered.group, recovered.loss
    engine.restored_before = leader.scheduler.cache_facts().restored_tokens
    engine.recoveries = engine_pb2.Recoveries(
        count=engine.recoveries.count + 1,
        seconds=time.monotonic() - began,
        streams=len(recovered.tokens),
        tokens=sum(recovered.tokens),
    )
    took = engine.recoveries
    tell(
        events.RECOVERED,
        cause=recovered.loss.cause,
        why=recovered.loss.told,
        seconds=took.seconds,
        streams=took.streams,
        tokens=took.tokens,
    )


def _least_left(group: Group) -> int:
    """Bytes on the rank that has fewest left."""
    others = (follower.free_bytes for follower in group.followers.followers)
    return min([left_for_cache(mx, group.shard.budget), *others])


def remember_sums(spec: EngineSpec, seconds: float | None) -> None:
    """For the next plan over these nodes; ranks without an identity are not planned from measurements."""
    members = [split_member(address)[0] for address in spec.ranks[1:]]
    if seconds and all(members):
        log.info("a small sum over the ranks takes %.2f ms", seconds * 1e3)
        remember_sum(spec.transport, members, seconds)


def _lost(reason: str) -> str:
    return f"the engine lost a rank: {reason}"


def _code(error: RankLost | GpuLost, group: Group | None) -> int:
    """With what to end. A leader that could not renew its group wants all of it started anew, whatever the cause."""
    if isinstance(error, GpuLost):
        return exit_code(cause_of(error))
    if group and group.renewable:
        return EXIT_RANK_LOST
    return EXIT_NO_MEMORY if out_of_memory(error) else exit_code(error.loss.cause)


def _with_others(own: Loss | None, spec: EngineSpec, group: Group) -> Loss | None:
    """Of a group that lives and dies together each rank was told how it was lost as its own machine saw it."""
    if own is None or not catalog.get(spec.transport).collective:
        return own
    return gravest([own, *group.losses_since(None)])


def _start(engine: Engine, service: ServiceThread, cleanup: contextlib.ExitStack) -> None:
    spec = engine.spec
    engine.enter(State.LOADING, f"loading {spec.model_path.name}")

    group = form_group(spec, engine.has_loaded, cleanup)
    engine.loss = _with_others(engine.loss, spec, group)
    limits = SchedulerLimits(
        context=context_length(group.shard.config, spec.context),
        vocabulary=group.shard.vocabulary,
        max_batch=spec.max_batch if group.batches else 1,
        max_queue=spec.max_queue,
        prefill_chunk=None if spec.prefill_chunk == "auto" else spec.prefill_chunk,
        chunks=ChunkLimits(
            platform.device.prefill_chunk(),
            platform.device.most_prefill_chunk(),
            spec.max_pause_ms / 1000,
            group.stages,
        ),
        lookahead=group.lookahead,
        lanes=min(spec.lanes or 1, group.stages),
    )
    step_log = cleanup.enter_context(contextlib.closing(LogFile(spec.step_log))) if spec.step_log else None
    runner = Runner(group.shard.stage, group.disk)
    file_list = FileList(group.disk.folder / LIST) if group.disk.folder else None
    publish = ThreadWatch(service.publish)
    leader = Leader(runner, Scheduler(limits), publish, group.followers, step_log, file_list)
    engine.enter(State.WARMING, "warming up")
    with group.followers.naming_the_lost():
        engine.has_loaded(0.0)
        warm_up(leader)
        engine.has_loaded(0.25)
        if not group.shard.in_kernels:  # whose threads were chosen before it was loaded
            publish.begin(choose_threads(leader), spec.threads or 1)
        engine.has_loaded(0.5)
        if limits.prefill_chunk is None:
            limits = replace(limits, chunks=measure_chunks(leader, _least_left(group)))
        engine.has_loaded(0.75)
        if spec.lanes is None and group.stages > 1:
            leader.scheduler.limits = limits
            limits = replace(limits, lanes=choose_lanes(leader, group.stages))
    engine.has_loaded(1.0)
    remember_sums(spec, group.followers.sum_seconds)
    # Only now is it known what a token costs each rank, and what loading and warming up have left.
    # Ranks of one machine share its memory.
    fraction = spec.memory_fraction / ranks_here(spec.ranks)
    room = group.room(runner, fraction, limits.context, spec.cache.memory)
    if engine.loss:
        room = room.after(engine.loss)
    leader.scheduler.limits = within_memory(limits, room)
    if leader.scheduler.limits.context < limits.context:
        log.warning("the context is %d tokens, not %d: memory holds no more", room.tokens, limits.context)
    leader.step_tokens = Histogram(ITERATION_TOKENS)  # what warming up took is nobody's
    leader.scheduler.keep(open_index(spec, group, runner, room, file_list))
    most = limits.max_batch + limits.max_queue
    grammars = Grammars(spec.model_path, limits.vocabulary, spec.grammars, most, spec.trust_remote_code)
    grammars.start()
    engine.grammars = grammars
    engine.group, engine.leader = group, leader
    group.followers.farewell = lambda reason: service.leave(_lost(reason))
