from chorus.messages.proto import trace_pb2 as _trace_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Finish(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNFINISHED: _ClassVar[Finish]
    STOP: _ClassVar[Finish]
    LENGTH: _ClassVar[Finish]
    CANCELLED: _ClassVar[Finish]
    REJECTED: _ClassVar[Finish]
    FAILED: _ClassVar[Finish]
    OVERLOADED: _ClassVar[Finish]

class EngineState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STARTING: _ClassVar[EngineState]
    LOADING: _ClassVar[EngineState]
    WARMING: _ClassVar[EngineState]
    READY: _ClassVar[EngineState]
    BROKEN: _ClassVar[EngineState]
    RECOVERING: _ClassVar[EngineState]
UNFINISHED: Finish
STOP: Finish
LENGTH: Finish
CANCELLED: Finish
REJECTED: Finish
FAILED: Finish
OVERLOADED: Finish
STARTING: EngineState
LOADING: EngineState
WARMING: EngineState
READY: EngineState
BROKEN: EngineState
RECOVERING: EngineState

class TraceRequest(_message.Message):
    __slots__ = ("steps", "seconds")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    seconds: float
    def __init__(self, steps: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class TraceReply(_message.Message):
    __slots__ = ("steps_done", "rank")
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    steps_done: int
    rank: RankTrace
    def __init__(self, steps_done: _Optional[int] = ..., rank: _Optional[_Union[RankTrace, _Mapping]] = ...) -> None: ...

class RankTrace(_message.Message):
    __slots__ = ("rank", "host", "pid", "clock_offset_seconds", "clock_error_seconds", "recording", "missing")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_ERROR_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECORDING_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    pid: int
    clock_offset_seconds: float
    clock_error_seconds: float
    recording: _trace_pb2.Recording
    missing: str
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., clock_offset_seconds: _Optional[float] = ..., clock_error_seconds: _Optional[float] = ..., recording: _Optional[_Union[_trace_pb2.Recording, _Mapping]] = ..., missing: _Optional[str] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("submit", "cancel")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    submit: Submit
    cancel: Cancel
    def __init__(self, submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("id", "prompt", "max_tokens", "stop_tokens", "sampling", "logprobs", "top_logprobs", "grammar", "owner", "answered", "cuts", "needed_cuts", "scope", "conversation", "pinned", "uncached", "resumed")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    NEEDED_CUTS_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    id: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    max_tokens: int
    stop_tokens: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    logprobs: bool
    top_logprobs: int
    grammar: Grammar
    owner: str
    answered: _containers.RepeatedScalarFieldContainer[int]
    cuts: _containers.RepeatedScalarFieldContainer[int]
    needed_cuts: _containers.RepeatedScalarFieldContainer[int]
    scope: str
    conversation: str
    pinned: bool
    uncached: bool
    resumed: bool
    def __init__(self, id: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., max_tokens: _Optional[int] = ..., stop_tokens: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., logprobs: bool = ..., top_logprobs: _Optional[int] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., owner: _Optional[str] = ..., answered: _Optional[_Iterable[int]] = ..., cuts: _Optional[_Iterable[int]] = ..., needed_cuts: _Optional[_Iterable[int]] = ..., scope: _Optional[str] = ..., conversation: _Optional[str] = ..., pinned: bool = ..., uncached: bool = ..., resumed: bool = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "source", "parts", "origins")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[Grammar.Kind]
        JSON_SCHEMA: _ClassVar[Grammar.Kind]
        REGEX: _ClassVar[Grammar.Kind]
        LARK: _ClassVar[Grammar.Kind]
        GBNF: _ClassVar[Grammar.Kind]
    NONE: Grammar.Kind
    JSON_SCHEMA: Grammar.Kind
    REGEX: Grammar.Kind
    LARK: Grammar.Kind
    GBNF: Grammar.Kind
    class Part(_message.Message):
        __slots__ = ("name", "kind", "source")
        NAME_FIELD_NUMBER: _ClassVar[int]
        KIND_FIELD_NUMBER: _ClassVar[int]
        SOURCE_FIELD_NUMBER: _ClassVar[int]
        name: str
        kind: Grammar.Kind
        source: str
        def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[Grammar.Kind, str]] = ..., source: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    kind: Grammar.Kind
    source: str
    parts: _containers.RepeatedCompositeFieldContainer[Grammar.Part]
    origins: _containers.RepeatedCompositeFieldContainer[Grammar.Part]
    def __init__(self, kind: _Optional[_Union[Grammar.Kind, str]] = ..., source: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[Grammar.Part, _Mapping]]] = ..., origins: _Optional[_Iterable[_Union[Grammar.Part, _Mapping]]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "repetition_context", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "xtc_probability", "xtc_threshold", "presence_context", "frequency_context")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    XTC_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    XTC_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    repetition_context: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    xtc_probability: float
    xtc_threshold: float
    presence_context: int
    frequency_context: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., repetition_context: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., xtc_probability: _Optional[float] = ..., xtc_threshold: _Optional[float] = ..., presence_context: _Optional[int] = ..., frequency_context: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("id", "tokens", "finish", "error", "timing", "logprobs", "embedding", "accepted", "field", "begun", "resumed")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    id: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    finish: Finish
    error: str
    timing: Timing
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    embedding: _containers.RepeatedScalarFieldContainer[float]
    accepted: bool
    field: str
    begun: bool
    resumed: bool
    def __init__(self, id: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., finish: _Optional[_Union[Finish, str]] = ..., error: _Optional[str] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., embedding: _Optional[_Iterable[float]] = ..., accepted: bool = ..., field: _Optional[str] = ..., begun: bool = ..., resumed: bool = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_tokens", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_tokens: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_tokens: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("queue_seconds", "prompt_seconds", "generation_seconds", "prompt_tokens", "cached_tokens", "generated_tokens", "stored_tokens")
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STORED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    queue_seconds: float
    prompt_seconds: float
    generation_seconds: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    stored_tokens: int
    def __init__(self, queue_seconds: _Optional[float] = ..., prompt_seconds: _Optional[float] = ..., generation_seconds: _Optional[float] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., stored_tokens: _Optional[int] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("prompt", "pooling")
    class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MEAN: _ClassVar[EmbedRequest.Pooling]
        LAST: _ClassVar[EmbedRequest.Pooling]
    MEAN: EmbedRequest.Pooling
    LAST: EmbedRequest.Pooling
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    prompt: _containers.RepeatedScalarFieldContainer[int]
    pooling: EmbedRequest.Pooling
    def __init__(self, prompt: _Optional[_Iterable[int]] = ..., pooling: _Optional[_Union[EmbedRequest.Pooling, str]] = ...) -> None: ...

class EmbedReply(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("state", "progress", "detail", "version", "model_path", "context_length", "vocabulary", "ranks", "load_count", "started_at", "running", "queued", "step", "max_batch", "max_queue", "transport", "parallel", "cache", "loss", "recoveries")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LOAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    state: EngineState
    progress: float
    detail: str
    version: str
    model_path: str
    context_length: int
    vocabulary: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankDescription]
    load_count: int
    started_at: float
    running: int
    queued: int
    step: int
    max_batch: int
    max_queue: int
    transport: str
    parallel: str
    cache: CacheDescription
    loss: Loss
    recoveries: Recoveries
    def __init__(self, state: _Optional[_Union[EngineState, str]] = ..., progress: _Optional[float] = ..., detail: _Optional[str] = ..., version: _Optional[str] = ..., model_path: _Optional[str] = ..., context_length: _Optional[int] = ..., vocabulary: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankDescription, _Mapping]]] = ..., load_count: _Optional[int] = ..., started_at: _Optional[float] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ..., step: _Optional[int] = ..., max_batch: _Optional[int] = ..., max_queue: _Optional[int] = ..., transport: _Optional[str] = ..., parallel: _Optional[str] = ..., cache: _Optional[_Union[CacheDescription, _Mapping]] = ..., loss: _Optional[_Union[Loss, _Mapping]] = ..., recoveries: _Optional[_Union[Recoveries, _Mapping]] = ...) -> None: ...

class Recoveries(_message.Message):
    __slots__ = ("count", "seconds", "streams", "tokens", "restored_tokens")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESTORED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    count: int
    seconds: float
    streams: int
    tokens: int
    restored_tokens: int
    def __init__(self, count: _Optional[int] = ..., seconds: _Optional[float] = ..., streams: _Optional[int] = ..., tokens: _Optional[int] = ..., restored_tokens: _Optional[int] = ...) -> None: ...

class Loss(_message.Message):
    __slots__ = ("cause", "told")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    cause: str
    told: str
    def __init__(self, cause: _Optional[str] = ..., told: _Optional[str] = ...) -> None: ...

class RankDescription(_message.Message):
    __slots__ = ("rank", "host", "pid", "device", "dtype", "first_layer", "last_layer", "weight_bytes", "memory_bytes", "step", "tensor_bytes", "sent_bytes", "threads", "heard_seconds", "form", "phase_seconds", "lost", "waited_seconds")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    LAST_LAYER_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TENSOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    HEARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    PHASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    WAITED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    pid: int
    device: str
    dtype: str
    first_layer: int
    last_layer: int
    weight_bytes: int
    memory_bytes: int
    step: int
    tensor_bytes: int
    sent_bytes: int
    threads: int
    heard_seconds: float
    form: str
    phase_seconds: _containers.RepeatedScalarFieldContainer[float]
    lost: bool
    waited_seconds: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., first_layer: _Optional[int] = ..., last_layer: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., step: _Optional[int] = ..., tensor_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., threads: _Optional[int] = ..., heard_seconds: _Optional[float] = ..., form: _Optional[str] = ..., phase_seconds: _Optional[_Iterable[float]] = ..., lost: bool = ..., waited_seconds: _Optional[_Iterable[float]] = ...) -> None: ...

class ClearCacheRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClearCacheReply(_message.Message):
    __slots__ = ("entries", "bytes")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    entries: int
    bytes: int
    def __init__(self, entries: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class CacheDescription(_message.Message):
    __slots__ = ("off", "entries", "tokens", "bytes", "budget_bytes", "live_bytes", "prompt_tokens", "cached_tokens", "evicted_tokens", "preempted", "disk_bytes", "disk_budget_bytes", "restored_tokens", "conversations")
    OFF_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESTORED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONVERSATIONS_FIELD_NUMBER: _ClassVar[int]
    off: str
    entries: int
    tokens: int
    bytes: int
    budget_bytes: int
    live_bytes: int
    prompt_tokens: int
    cached_tokens: int
    evicted_tokens: int
    preempted: int
    disk_bytes: int
    disk_budget_bytes: int
    restored_tokens: int
    conversations: int
    def __init__(self, off: _Optional[str] = ..., entries: _Optional[int] = ..., tokens: _Optional[int] = ..., bytes: _Optional[int] = ..., budget_bytes: _Optional[int] = ..., live_bytes: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., evicted_tokens: _Optional[int] = ..., preempted: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., disk_budget_bytes: _Optional[int] = ..., restored_tokens: _Optional[int] = ..., conversations: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Figures(_message.Message):
    __slots__ = ("started_at", "figures")
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    started_at: float
    figures: _containers.RepeatedCompositeFieldContainer[Figure]
    def __init__(self, started_at: _Optional[float] = ..., figures: _Optional[_Iterable[_Union[Figure, _Mapping]]] = ...) -> None: ...

class Figure(_message.Message):
    __slots__ = ("name", "labels", "value", "buckets", "sum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    value: float
    buckets: _containers.RepeatedScalarFieldContainer[int]
    sum: float
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., value: _Optional[float] = ..., buckets: _Optional[_Iterable[int]] = ..., sum: _Optional[float] = ...) -> None: ...
