"""An engine for tests: speaks the real link on a Unix socket and does what each test's script says."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from chorus.messages.engine import grammar_from_wire
from chorus.messages.grammar import GrammarError
from chorus.messages.proto import engine_pb2 as pb
from chorus.messages.proto.engine_pb2_grpc import EngineServicer, add_EngineServicer_to_server
from tests.support.grammars import GrammarHost

DEADLINE = 120.0

WATCH_SECONDS = 0.1

_DROP = object()


class Run:
    """One submitted request, as its script sees it."""

    def __init__(self, submit: pb.Submit, outbox: queue.Queue[Any]) -> None:
        self.submit = submit
        self.cancelled = threading.Event()
        self._outbox = outbox

    def accept(self) -> None:
        """A link that has no word for it is not told, so that what it does then can be seen."""
        if "accepted" in pb.Progress.DESCRIPTOR.fields_by_name:
            self._put(pb.Progress(id=self.submit.id, accepted=True))

    def begin(self, cached: int = 0) -> None:
        """Its prompt is being read from now on."""
        told = pb.Timing(prompt_tokens=len(self.submit.prompt), cached_tokens=cached)
        self._put(pb.Progress(id=self.submit.id, begun=True, timing=told))

    def resume(self) -> None:
        """A rank was lost, and it goes on."""
        self._put(pb.Progress(id=self.submit.id, resumed=True))

    def send(self, *tokens: int, **timing: float) -> None:
        progress = pb.Progress(id=self.submit.id, tokens=tokens)
        if timing:
            progress.timing.CopyFrom(pb.Timing(**timing))
        if self.submit.logprobs:
            progress.logprobs.extend(made_up_logprobs(token, self.submit.top_logprobs) for token in tokens)
        self._put(progress)

    def finish(
        self, finish: pb.Finish, tokens: Sequence[int] = (), error: str = "", field: str = "", **timing: float
    ) -> None:
        progress = pb.Progress(id=self.submit.id, tokens=tokens, finish=finish, error=error, field=field)
        if timing:
            progress.timing.CopyFrom(pb.Timing(**timing))
        self._put(progress)

    def wait_cancelled(self) -> None:
        assert self.cancelled.wait(DEADLINE), "no cancel arrived"

    def _put(self, progress: pb.Progress) -> None:
        self._outbox.put(pb.Event(progress=[progress]))


def made_up_logprobs(token: int, top: int) -> pb.TokenLogprobs:
    """The token itself is best, then those after it; each half as likely as the one before."""
    tokens = [token + place for place in range(top)]
    return pb.TokenLogprobs(
        logprob=-0.5, top_tokens=tokens, top_logprobs=[-0.5 - place for place in range(len(tokens))]
    )


Script = Callable[[Run], None]


def say(tokens: Sequence[int], finish: pb.Finish = pb.STOP, cached: int = 0, stored: int = 0) -> Script:
    """One event per token, then the finish; a stop token is counted, not reported."""

    def script(run: Run) -> None:
        run.accept()
        for token in tokens:
            run.send(token)
        run.finish(
            finish,
            queue_seconds=0.25,
            prompt_seconds=0.5,
            generation_seconds=2.0,
            prompt_tokens=len(run.submit.prompt),
            cached_tokens=cached,
            stored_tokens=stored,
            generated_tokens=len(tokens) + (finish == pb.STOP),
        )

    return script


def say_until_cancelled(tokens: Sequence[int], cached: int = 0) -> Script:
    """Says the tokens, then runs on in silence until it is cancelled."""

    def script(run: Run) -> None:
        run.accept()
        for token in tokens:
            run.send(token)
        run.wait_cancelled()
        run.finish(
            pb.CANCELLED,
            queue_seconds=0.25,
            prompt_seconds=0.5,
            generation_seconds=2.0,
            prompt_tokens=len(run.submit.prompt),
            cached_tokens=cached,
            generated_tokens=len(tokens) + 1,
        )

    return script


def refuse(finish: pb.Finish, error: str) -> Script:
    return lambda run: run.finish(finish, error=error)


def play(tokens: Sequence[int], cached: int = 0, meanwhile: Callable[[Run, str | int], None] | None = None) -> Script:
    """Goes on from what was answered, as an engine does. `meanwhile` is called before each phase, a number standing
    for the token at that place; it may raise Died.
    """

    def script(run: Run) -> None:
        def at(phase: str | int) -> None:
            if meanwhile:
                meanwhile(run, phase)

        begun = len(run.submit.answered)
        assert tuple(run.submit.answered) == tuple(tokens[:begun]), "what was answered is not what was said"
        figures = {"prompt_tokens": len(run.submit.prompt), "cached_tokens": cached}
        try:
            at("accept")
            run.accept()
            for place in range(begun, len(tokens)):
                at(place)
                first = {"queue_seconds": 0.25, "prompt_seconds": 0.5, **figures} if place == begun else {}
                run.send(tokens[place], **first)
            at("finish")
            run.finish(pb.STOP, queue_seconds=0.25, prompt_seconds=0.5, generated_tokens=len(tokens) + 1, **figures)
        except Died:
            pass

    return script


class Died(Exception):
    """The engine has ended under a script."""


class ScriptedEngine(EngineServicer):
    def __init__(
        self, socket_path: Path, vocabulary: int, context_length: int = 256, grammars: GrammarHost | None = None
    ) -> None:
        """With `grammars`, those that cannot be used are refused as the engine does."""
        self._grammars = grammars
        self.address = f"unix:{socket_path}"
        self.runs: list[Run] = []
        self.sessions = 0
        self.default: Script = refuse(pb.FAILED, "no script was given")
        self.description = pb.Description(
            state=pb.READY,
            progress=1.0,
            version="test",
            model_path="/secret/place/model",
            context_length=context_length,
            vocabulary=vocabulary,
            load_count=1,
            transport="local",
            parallel="single",
            cache=pb.CacheDescription(budget_bytes=1 << 30),
            ranks=[pb.RankDescription(rank=0, host="here", device="cpu", dtype="float32", last_layer=4)],
        )
        self.figures: list[pb.Figure] = []
        """What it tells whoever watches."""
        self.before_describing: Callable[[], None] = lambda: None
        self.embedded: list[pb.EmbedRequest] = []
        self.embeddings_lost = 0
        """So many engines are lost over the next ones."""
        self._scripts: deque[Script] = deque()
        self._open: dict[int, queue.Queue[Any]] = {}
        self._submitted = threading.Condition()
        self.start()

    def start(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(max_workers=48))
        add_EngineServicer_to_server(self, self._server)
        assert self._server.add_insecure_port(self.address), "the socket is taken"
        self._server.start()

    def stop(self) -> None:
        assert self._server.stop(grace=0).wait(DEADLINE), "the engine's server did not stop"
        self.drop_sessions()

    def reset(self) -> None:
        self._scripts.clear()
        self.runs.clear()
        self.embedded.clear()
        self.figures.clear()
        self.description.state = pb.READY
        self.description.ClearField("loss")
        self.description.cache.CopyFrom(pb.CacheDescription(budget_bytes=1 << 30))
        self.default = refuse(pb.FAILED, "no script was given")

    def next(self, *scripts: Script) -> None:
        self._scripts.extend(scripts)

    def die(self, cause: str = "outside", told: str = "rank 0 was killed") -> None:
        """The sessions end, and whoever asks next finds another engine."""
        self.description.started_at += 1
        self.description.loss.CopyFrom(pb.Loss(cause=cause, told=told))
        self.drop_sessions()

    def drop_sessions(self) -> None:
        for outbox in list(self._open.values()):
            outbox.put(_DROP)

    def wait_for_run(self, number: int = 0) -> Run:
        with self._submitted:
            assert self._submitted.wait_for(lambda: len(self.runs) > number, DEADLINE), "nothing was submitted"
            return self.runs[number]

    @property
    def last(self) -> pb.Submit:
        return self.runs[-1].submit

    def Describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.Description:
        self.before_describing()
        return self.description

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.Figures]:
        """Sooner than an engine does, so that nobody waits for it; like an engine, nothing while nothing happens."""
        left = threading.Event()
        if not context.add_callback(left.set):
            return
        told = None
        while not left.wait(WATCH_SECONDS):
            figures = pb.Figures(started_at=self.description.started_at, figures=self.figures)
            if figures != told:
                told = figures
                yield figures

    def ClearCache(self, request: pb.ClearCacheRequest, context: grpc.ServicerContext) -> pb.ClearCacheReply:
        """Forgets what the description says is kept."""
        cache = self.description.cache
        reply = pb.ClearCacheReply(entries=cache.entries, bytes=cache.bytes)
        cache.ClearField("entries")
        cache.ClearField("bytes")
        return reply

    def Embed(self, request: pb.EmbedRequest, context: grpc.ServicerContext) -> pb.EmbedReply:
        """Three numbers that tell the prompts apart."""
        self.embedded.append(request)
        if self.embeddings_lost:
            self.embeddings_lost -= 1
            self.die()
            context.abort(grpc.StatusCode.UNAVAILABLE, "the engine is stopping")
        return pb.EmbedReply(values=[3.0, 4.0, float(len(request.prompt))])

    def Session(self, commands: Iterator[pb.Command], context: grpc.ServicerContext) -> Iterator[pb.Event]:
        self.sessions += 1
        number = self.sessions
        outbox: queue.Queue[Any] = queue.Queue()
        self._open[number] = outbox
        context.add_callback(lambda: outbox.put(_DROP))
        threading.Thread(target=self._read, args=(commands, outbox), daemon=True).start()
        try:
            while (event := outbox.get()) is not _DROP:
                yield event
        finally:
            del self._open[number]
        context.abort(grpc.StatusCode.UNAVAILABLE, "the script dropped the session")

    def _read(self, commands: Iterator[pb.Command], outbox: queue.Queue[Any]) -> None:
        runs: dict[str, Run] = {}
        try:
            for command in commands:
                if command.HasField("cancel"):
                    if run := runs.get(command.cancel.id):
                        run.cancelled.set()
                else:
                    run = runs[command.submit.id] = Run(command.submit, outbox)
                    if not self._refused(run):
                        self._begin(run)
        except grpc.RpcError:
            pass  # the session broke
        finally:
            for run in runs.values():
                run.cancelled.set()

    def _begin(self, run: Run) -> None:
        script = self._scripts.popleft() if self._scripts else self.default
        with self._submitted:
            self.runs.append(run)
            self._submitted.notify_all()
        threading.Thread(target=script, args=(run,), daemon=True).start()

    def _refused(self, run: Run) -> bool:
        if not self._grammars or not run.submit.HasField("grammar"):
            return False
        try:
            self._grammars.open(grammar_from_wire(run.submit.grammar), frozenset(run.submit.stop_tokens)).close()
        except GrammarError as error:
            run.finish(pb.REJECTED, error=str(error), field=error.field)
            return True
        return False
