"""The link between a front end and the engine: requests one way, progress the other. Token ids only."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import NamedTuple

from chorus.messages.grammar import Grammar, GrammarKind, GrammarPart
from chorus.messages.proto import engine_pb2 as pb

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Its fields are called as on the wire; what is left out is off, and without a temperature
    the likeliest token is taken."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_context: int = 20
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.0
    presence_context: int = 0
    """0: all tokens of the answer and none of the prompt; else so many of the last ones, the prompt's too."""
    frequency_context: int = 0
    """The same."""


class Pooling(enum.StrEnum):
    """How the hidden states of a prompt become one."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    """A front end may give the same one twice: its client puts a number before it, the engine that of the session."""
    prompt: tuple[int, ...]
    max_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    sampling: Sampling = Sampling()
    logprobs: int | None = None
    """How many of the best candidates to report with each token; 0: the token's own log probability alone."""
    grammar: Grammar | None = None
    pooling: Pooling | None = None
    """Wanted are the final hidden states of the prompt, pooled, and no tokens."""
    owner: str = ""
    """Whom the request is counted for; turns are shared fairly among owners."""
    answered: tuple[int, ...] = ()
    """Tokens that were drawn for it before: output, not prompt, and not reported again."""
    cuts: tuple[int, ...] = ()
    """Where another request may part from this prompt, as numbers of tokens that both then share, in order."""
    needed_cuts: tuple[int, ...] = ()
    """Those of them where the next turn of this conversation will part from it."""
    scope: str = ""
    """Only requests of one scope share what is stored."""
    conversation: str = ""
    """What is stored of a conversation goes after everything else."""
    pinned: bool = False
    """The client marked parts of the prompt to be kept."""
    uncached: bool = False
    """Begins with nothing stored and leaves nothing."""
    resumed: bool = False
    """An engine before this one had taken it: it is first in line, whatever waits."""

    @property
    def longest(self) -> int:
        return len(self.prompt) + self.max_tokens


class Finish(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"
    OVERLOADED = "overloaded"


@dataclass(frozen=True, slots=True)
class Timing:
    queue_seconds: float
    prompt_seconds: float
    generation_seconds: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    stored_tokens: int = 0
    """Of the prompt, those that were not stored before and are now."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of the model's own distribution."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """Token and log probability of the best candidates, best first."""


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """What is kept of earlier requests, and what it was good for. Bytes are those of the rank with least room left."""

    off: str = ""
    """Why nothing is kept; empty where it is."""
    entries: int = 0
    tokens: int = 0
    bytes: int = 0
    budget_bytes: int = 0
    """For running streams and stored prefixes together."""
    live_bytes: int = 0
    """What running streams take of it."""
    prompt_tokens: int = 0
    """Of all requests so far."""
    cached_tokens: int = 0
    """Of these, found stored."""
    evicted_tokens: int = 0
    preempted: int = 0
    """How often a stream made room and went on later."""
    disk_bytes: int = 0
    disk_budget_bytes: int = 0
    restored_tokens: int = 0
    conversations: int = 0
    """That are pinned."""


class Progress(NamedTuple):
    """What a step brought to one request. Made for every token, so of the kind of value that is made fastest."""

    id: str
    tokens: tuple[int, ...] = ()
    finish: Finish | None = None
    error: str = ""
    timing: Timing | None = None
    """With the finish; and with the first token, so far."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, where they were asked for."""
    embedding: tuple[float, ...] = ()
    accepted: bool = False
    """It is queued, and its grammar compiled."""
    field: str = ""
    """What the client calls what the error is about, where that is known."""
    begun: bool = False
    """Its prompt is being read from now on; the timing says how much of it was stored."""
    resumed: bool = False
    """A rank was lost, and it goes on from where it was."""


def request_to_wire(request: Request) -> pb.Submit:
    return pb.Submit(
        id=request.id,
        prompt=request.prompt,
        max_tokens=request.max_tokens,
        stop_tokens=sorted(request.stop_tokens),
        sampling=sampling_to_wire(request.sampling),
        logprobs=request.logprobs is not None,
        top_logprobs=request.logprobs,
        grammar=grammar_to_wire(request.grammar) if request.grammar else None,
        owner=request.owner,
        answered=request.answered,
        cuts=request.cuts,
        needed_cuts=request.needed_cuts,
        scope=request.scope,
        conversation=request.conversation,
        pinned=request.pinned,
        uncached=request.uncached,
        resumed=request.resumed,
    )


def request_from_wire(submit: pb.Submit) -> Request:
    return Request(
        id=submit.id,
        prompt=tuple(submit.prompt),
        max_tokens=submit.max_tokens,
        stop_tokens=frozenset(submit.stop_tokens),
        sampling=sampling_from_wire(submit.sampling),
        logprobs=min(submit.top_logprobs, MAX_TOP_LOGPROBS) if submit.logprobs else None,
        grammar=grammar_from_wire(submit.grammar) if submit.grammar.kind else None,
        owner=submit.owner,
        answered=tuple(submit.answered),
        cuts=tuple(submit.cuts),
        needed_cuts=tuple(submit.needed_cuts),
        scope=submit.scope,
        conversation=submit.conversation,
        pinned=submit.pinned,
        uncached=submit.uncached,
        resumed=submit.resumed,
    )


def embedding_to_wire(prompt: Sequence[int], pooling: Pooling) -> pb.EmbedRequest:
    return pb.EmbedRequest(prompt=prompt, pooling=pb.EmbedRequest.Pooling.Value(pooling.upper()))


def embedding_from_wire(message: pb.EmbedRequest) -> Request:
    pooling = Pooling(pb.EmbedRequest.Pooling.Name(message.pooling).lower())
    return Request("e", tuple(message.prompt), max_tokens=1, pooling=pooling)


def sampling_to_wire(sampling: Sampling) -> pb.Sampling:
    return pb.Sampling(**{rule.name: getattr(sampling, rule.name) for rule in fields(Sampling)})


def sampling_from_wire(message: pb.Sampling) -> Sampling:
    values = {rule.name: getattr(message, rule.name) for rule in fields(Sampling)}
    return Sampling(**values | {"logit_bias": dict(message.logit_bias)})


def grammar_to_wire(grammar: Grammar) -> pb.Grammar:
    def kind(name: GrammarKind) -> pb.Grammar.Kind:
        return pb.Grammar.Kind.Value(name.upper())

    def written(parts: Iterable[GrammarPart]) -> list[pb.Grammar.Part]:
        return [pb.Grammar.Part(name=part.name, kind=kind(part.kind), source=part.source) for part in parts]

    return pb.Grammar(
        kind=kind(grammar.kind),
        source=grammar.source,
        parts=written(grammar.parts),
        origins=written(grammar.origins),
    )


_GRAMMAR_KINDS: dict[pb.Grammar.Kind, GrammarKind] = {
    pb.Grammar.JSON_SCHEMA: "json_schema",
    pb.Grammar.REGEX: "regex",
    pb.Grammar.LARK: "lark",
    pb.Grammar.GBNF: "gbnf",
}


def grammar_from_wire(message: pb.Grammar) -> Grammar:
    def read(parts: Iterable[pb.Grammar.Part]) -> tuple[GrammarPart, ...]:
        return tuple(GrammarPart(part.name, _GRAMMAR_KINDS[part.kind], part.source) for part in parts)

    return Grammar(_GRAMMAR_KINDS[message.kind], message.source, read(message.parts), read(message.origins))


_FINISH_TO_WIRE: dict[Finish | None, pb.Finish] = {
    None: pb.UNFINISHED,
    **{finish: pb.Finish.Value(finish.name) for finish in Finish},
}
_FINISH_FROM_WIRE = {number: finish for finish, number in _FINISH_TO_WIRE.items()}


def progress_to_wire(progress: Progress, request_id: str) -> pb.Progress:
    """Under the id that the front end gave the request."""
    _, tokens, finish, error, timing, logprobs, embedding, accepted, about, begun, resumed = progress
    if finish is None and not logprobs and not accepted and timing is None and not resumed:
        return pb.Progress(id=request_id, tokens=tokens)
    return pb.Progress(
        id=request_id,
        tokens=tokens,
        finish=_FINISH_TO_WIRE[finish],
        error=error,
        timing=pb.Timing(**asdict(timing)) if timing else None,
        logprobs=[
            pb.TokenLogprobs(
                logprob=entry.logprob,
                top_tokens=[token for token, _ in entry.top],
                top_logprobs=[logprob for _, logprob in entry.top],
            )
            for entry in logprobs
        ],
        embedding=embedding,
        accepted=accepted,
        field=about,
        begun=begun,
        resumed=resumed,
    )


def progress_from_wire(message: pb.Progress) -> Progress:
    finish, logprobs = _FINISH_FROM_WIRE.get(message.finish, Finish.FAILED), message.logprobs
    timing = message.timing if message.HasField("timing") else None
    if finish is None and not logprobs and timing is None:
        return Progress(message.id, tuple(message.tokens), accepted=message.accepted, resumed=message.resumed)
    return Progress(
        message.id,
        tuple(message.tokens),
        finish,
        message.error,
        Timing(*(getattr(timing, figure.name) for figure in fields(Timing))) if timing else None,
        tuple(
            TokenLogprobs(entry.logprob, tuple(zip(entry.top_tokens, entry.top_logprobs, strict=True)))
            for entry in logprobs
        ),
        tuple(message.embedding),
        message.accepted,
        message.field,
        message.begun,
    )


def cache_facts_to_wire(facts: CacheFacts) -> pb.CacheDescription:
    return pb.CacheDescription(**asdict(facts))


def cache_facts_from_wire(message: pb.CacheDescription) -> CacheFacts:
    return CacheFacts(**{fact.name: getattr(message, fact.name) for fact in fields(CacheFacts)})
