"""What the server says of itself."""

from __future__ import annotations

from typing import Any, Literal

from chorus.api.answers import ResponseModel


class Summary(ResponseModel):
    service: Literal["chorus"]
    version: str
    model: str | None
    """None where the key is for other models."""
    status: str
    endpoints: list[str]


class Live(ResponseModel):
    status: Literal["ok"]


class Ready(ResponseModel):
    state: str
    progress: float
    detail: str


class ModelBrief(ResponseModel):
    """One of the models of this server, as its owner last said, and what this front end is asked for of it."""

    id: str
    state: str
    progress: float
    detail: str
    booked_bytes: int
    """What it takes, or would take, on all nodes together; 0 where nobody has said."""
    loaded_bytes: int
    total_bytes: int
    """Of its load, on all nodes together."""
    loads: int
    """How often it was loaded."""
    aliases: list[str]
    context_length: int | None
    ranks: int
    nodes: list[str]
    running: int
    waiting: int
    until: float | None
    """When it goes unless it is asked for, in seconds since 1970; None: it stays."""


class Health(ResponseModel):
    """Where keys are asked for, who shows none for the model is told the status alone."""

    status: str
    model: str | None = None
    version: str | None = None
    engine: dict[str, Any] | None = None
    requests: dict[str, int] | None = None
    models: list[ModelBrief] | None = None
    configuration: dict[str, Any] | None = None


class ModelEntry(ResponseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int | None
    max_model_len: int | None
    aliases: list[str]
    state: str
    loaded: bool
    """Whether it answers at once; the others are loaded when they are asked for."""
    size: int | None
    """In bytes: what it takes in memory, or would take; None where nobody knows."""


class ModelList(ResponseModel):
    object: Literal["list"]
    data: list[ModelEntry]


class RankInfo(ResponseModel):
    rank: int
    device: str
    dtype: str
    form: str
    """In which its weights are multiplied: unpacked, packed, packed to 8 or 4 bits; empty: as MLX keeps them."""
    unpacked: bool
    """Quantized weights were, when they were loaded."""
    threads: int
    """Of its CPU."""
    layers: str | None
    """The first and the last that it holds, counted from 0, as in 9-29; None while it loads them."""
    first_layer: int | None
    last_layer: int | None
    weight_bytes: int


class RankStatus(RankInfo):
    node: str
    """Its device id, or the name by which its node joined; its host's where it has neither."""
    host: str
    pid: int
    memory_bytes: int
    step: int
    tensor_bytes: int
    """Passed on to the next stage so far, over grpc."""
    sent_bytes: int
    """The same as sent: fewer where the link is slow enough for compression."""
    phases: dict[str, float]
    """Seconds of its main thread by what it did: `compute`, `wait`, `transport`, `sampling`, `schedule`, `idle`."""
    waited_for: dict[str, float]
    """Seconds of its waits by the rank that it waited for."""
    state: str
    """ready; lost, while it is replaced, and waiting meanwhile; else what its engine does."""


class Observed(ResponseModel):
    requests: int
    tokens_per_second: float | None
    """Median over the latest requests; None before the first."""
    first_token_seconds: float | None
    """The same, from a request's arrival to its first token."""


class RecoveryInfo(ResponseModel):
    """How ranks were lost, and what it took to go on."""

    count: int
    """How often this engine has replaced a rank and gone on."""
    seconds: float
    """Until the last lost rank was there again."""
    streams: int
    """That went on then."""
    tokens: int
    """Of these streams, to be read again."""
    restored_tokens: int
    """Of these, read from disk since; the others are computed."""
    cause: str | None
    """Of the last loss, of this engine's or of the engine before: outside, fault or memory."""
    told: str | None


class ClusterStatus(ResponseModel):
    model: str
    state: str
    progress: float
    detail: str
    parallel: str | None
    transport: str | None
    running: int
    queued: int
    step: int
    ranks: list[RankStatus]
    recoveries: RecoveryInfo | None
    observed: Observed
    models: list[ModelBrief]
    plan: dict[str, Any] | None
    """What the planner predicted, where it was asked."""
    nodes: list[dict[str, Any]]
    links: list[dict[str, Any]]
    """Between machines whose ranks talk, as they were when the model was divided."""
    problems: dict[str, str]


class CacheInfo(ResponseModel):
    """What is kept of earlier requests; bytes are those of the rank that has least room."""

    enabled: bool
    reason: str | None
    """Why nothing is kept."""
    entries: int
    tokens: int
    bytes: int
    budget_bytes: int
    """For running requests and what is stored together."""
    live_bytes: int
    """What running requests take of it."""
    prompt_tokens: int
    """Of all requests since the model was loaded."""
    cached_tokens: int
    """Those of them that were found stored."""
    hit_rate: float | None
    """The share of them; None before the first request."""
    evicted_tokens: int
    preempted: int
    """Requests that made room for others and went on later."""
    disk_bytes: int
    disk_budget_bytes: int
    restored_tokens: int
    """Read back from disk instead of computed."""
    conversations: int
    """Those that are pinned."""


class ModelInfo(ResponseModel):
    id: str
    name: str
    architecture: str | None
    chat_template: bool
    context_length: int
    vocabulary: int
    dtype: str | None
    parallel: str
    transport: str
    number_of_devices: int
    ranks: list[RankInfo]
    cache: CacheInfo | None
