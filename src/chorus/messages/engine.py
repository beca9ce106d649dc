"""The values a front end exchanges with the engine, and their wire forms."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from chorus.messages.grammar import Grammar, GrammarKind, Part
from chorus.messages.proto import engine_pb2 as pb
from chorus.serving.errors import EngineError, EngineLost, EngineOverloaded, RequestFailed, RequestRejected

EngineFinish = Literal["stop", "length", "cancelled"]
Pooling = Literal["mean", "last"]


@dataclass(frozen=True)
class Sampling:
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_context: int = 20
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.0


@dataclass(frozen=True)
class GenerationRequest:
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop_tokens: tuple[int, ...] = ()
    label: str = ""
    """Joined to the id the engine sees, so that its log lines can be matched with the front end's."""
    logprobs: bool = False
    top_logprobs: int = 0
    grammar: Grammar | None = None
    owner: str = ""
    """Whom the request is counted for; the engine shares its turns fairly among owners."""


@dataclass(frozen=True)
class Timing:
    queue_seconds: float
    prompt_seconds: float
    generation_seconds: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


@dataclass(frozen=True)
class TokenLogprobs:
    """Of the model's own distribution; the best candidates first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Progress(NamedTuple):
    """Made for every token, so of the kind of value that is made fastest."""

    tokens: tuple[int, ...]
    finish: EngineFinish | None = None
    timing: Timing | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, where they were asked for."""


def draw_seed() -> int:
    """63 bits, so that every language's signed integers can hold it."""
    return secrets.randbits(63)


def submit_command(request_id: str, request: GenerationRequest) -> pb.Command:
    chosen = request.sampling
    sampling = pb.Sampling(
        temperature=chosen.temperature,
        top_p=chosen.top_p,
        top_k=chosen.top_k,
        min_p=chosen.min_p,
        repetition_penalty=chosen.repetition_penalty,
        repetition_context=chosen.repetition_context,
        presence_penalty=chosen.presence_penalty,
        frequency_penalty=chosen.frequency_penalty,
        logit_bias=chosen.logit_bias,
        seed=chosen.seed,
        xtc_probability=chosen.xtc_probability,
        xtc_threshold=chosen.xtc_threshold,
    )
    submit = pb.Submit(
        id=request_id,
        prompt=request.prompt,
        max_tokens=request.max_tokens,
        stop_tokens=request.stop_tokens,
        sampling=sampling,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        owner=request.owner,
    )
    if request.grammar:
        submit.grammar.CopyFrom(_grammar(request.grammar))
    return pb.Command(submit=submit)


def _grammar(grammar: Grammar) -> pb.Grammar:
    def kind(name: GrammarKind) -> pb.Grammar.Kind:
        return pb.Grammar.Kind.Value(name.upper())

    def written(parts: tuple[Part, ...]) -> list[pb.Grammar.Part]:
        return [pb.Grammar.Part(name=part.name, kind=kind(part.kind), source=part.source) for part in parts]

    return pb.Grammar(
        kind=kind(grammar.kind),
        source=grammar.source,
        parts=written(grammar.parts),
        origins=written(grammar.origins),
    )


def cancel_command(request_id: str) -> pb.Command:
    return pb.Command(cancel=pb.Cancel(id=request_id))


def read_progress(message: pb.Progress, cancel_wanted: bool) -> Progress | EngineError:
    """An outcome that is no answer becomes the error to raise; a cancel nobody asked for is one of them."""
    match message.finish:
        case pb.UNFINISHED:
            return _moved(message, None)
        case pb.STOP:
            return _moved(message, "stop")
        case pb.LENGTH:
            return _moved(message, "length")
        case pb.CANCELLED if cancel_wanted:
            return _moved(message, "cancelled")
        case pb.CANCELLED:
            return EngineLost(message.error or "the engine cancelled the request; it may be shutting down")
        case pb.REJECTED:
            return RequestRejected(message.error or "the engine rejected the request", message.field)
        case pb.OVERLOADED:
            return EngineOverloaded(message.error or "the engine's queue is full; try again later")
        case _:
            return RequestFailed(message.error or "the engine failed the request")


def _moved(message: pb.Progress, finish: EngineFinish | None) -> Progress:
    tokens, logprobs = tuple(message.tokens), message.logprobs
    if finish is None and not logprobs:
        return Progress(tokens)
    known = [
        TokenLogprobs(entry.logprob, tuple(zip(entry.top_tokens, entry.top_logprobs, strict=True)))
        for entry in logprobs
    ]
    return Progress(tokens, finish, _timing(message) if finish else None, tuple(known))


def _timing(message: pb.Progress) -> Timing | None:
    if not message.HasField("timing"):
        return None
    timing = message.timing
    return Timing(
        queue_seconds=timing.queue_seconds,
        prompt_seconds=timing.prompt_seconds,
        generation_seconds=timing.generation_seconds,
        prompt_tokens=timing.prompt_tokens,
        cached_tokens=timing.cached_tokens,
        generated_tokens=timing.generated_tokens,
    )
