from chorus.messages.proto import trace_pb2 as _trace_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TimeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TimeReply(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    def __init__(self, seconds: _Optional[float] = ...) -> None: ...

class RecordRequest(_message.Message):
    __slots__ = ("session", "seconds", "most_spans")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    MOST_SPANS_FIELD_NUMBER: _ClassVar[int]
    session: int
    seconds: float
    most_spans: int
    def __init__(self, session: _Optional[int] = ..., seconds: _Optional[float] = ..., most_spans: _Optional[int] = ...) -> None: ...

class RecordReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeRecordingRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("version", "protocol")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    version: str
    protocol: int
    def __init__(self, version: _Optional[str] = ..., protocol: _Optional[int] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("version", "rank", "host", "pid", "device", "collective_port", "loss_cause", "loss_told", "opens", "protocol")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_PORT_FIELD_NUMBER: _ClassVar[int]
    LOSS_CAUSE_FIELD_NUMBER: _ClassVar[int]
    LOSS_TOLD_FIELD_NUMBER: _ClassVar[int]
    OPENS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    version: str
    rank: int
    host: str
    pid: int
    device: str
    collective_port: int
    loss_cause: str
    loss_told: str
    opens: bool
    protocol: int
    def __init__(self, version: _Optional[str] = ..., rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., device: _Optional[str] = ..., collective_port: _Optional[int] = ..., loss_cause: _Optional[str] = ..., loss_told: _Optional[str] = ..., opens: bool = ..., protocol: _Optional[int] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("group", "model", "needs", "more", "fresh")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    group: str
    model: str
    needs: int
    more: bool
    fresh: bool
    def __init__(self, group: _Optional[str] = ..., model: _Optional[str] = ..., needs: _Optional[int] = ..., more: bool = ..., fresh: bool = ...) -> None: ...

class PlaceReply(_message.Message):
    __slots__ = ("port",)
    PORT_FIELD_NUMBER: _ClassVar[int]
    port: int
    def __init__(self, port: _Optional[int] = ...) -> None: ...

class RoomRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class RoomReply(_message.Message):
    __slots__ = ("free", "budget", "held")
    FREE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    free: int
    budget: int
    held: int
    def __init__(self, free: _Optional[int] = ..., budget: _Optional[int] = ..., held: _Optional[int] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("model_path", "model", "split", "ranks", "dtype", "memory_fraction", "trust_remote_code", "transport", "addresses", "ring_hosts", "step_timeout_seconds", "parallel", "coordinator", "rdma_devices", "compression", "policies", "look_ahead", "disk_bytes", "disk_folder", "routes", "session", "headers", "cpu_products", "pack", "kv_bits", "group", "weights")
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FRACTION_FIELD_NUMBER: _ClassVar[int]
    TRUST_REMOTE_CODE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    RING_HOSTS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    RDMA_DEVICES_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    LOOK_AHEAD_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FOLDER_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    CPU_PRODUCTS_FIELD_NUMBER: _ClassVar[int]
    PACK_FIELD_NUMBER: _ClassVar[int]
    KV_BITS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    model_path: str
    model: str
    split: _containers.RepeatedScalarFieldContainer[int]
    ranks: int
    dtype: str
    memory_fraction: float
    trust_remote_code: bool
    transport: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    ring_hosts: _containers.RepeatedScalarFieldContainer[str]
    step_timeout_seconds: float
    parallel: str
    coordinator: str
    rdma_devices: str
    compression: str
    policies: _containers.RepeatedScalarFieldContainer[str]
    look_ahead: bool
    disk_bytes: int
    disk_folder: str
    routes: _containers.RepeatedScalarFieldContainer[str]
    session: int
    headers: bytes
    cpu_products: str
    pack: int
    kv_bits: int
    group: str
    weights: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model_path: _Optional[str] = ..., model: _Optional[str] = ..., split: _Optional[_Iterable[int]] = ..., ranks: _Optional[int] = ..., dtype: _Optional[str] = ..., memory_fraction: _Optional[float] = ..., trust_remote_code: bool = ..., transport: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., ring_hosts: _Optional[_Iterable[str]] = ..., step_timeout_seconds: _Optional[float] = ..., parallel: _Optional[str] = ..., coordinator: _Optional[str] = ..., rdma_devices: _Optional[str] = ..., compression: _Optional[str] = ..., policies: _Optional[_Iterable[str]] = ..., look_ahead: bool = ..., disk_bytes: _Optional[int] = ..., disk_folder: _Optional[str] = ..., routes: _Optional[_Iterable[str]] = ..., session: _Optional[int] = ..., headers: _Optional[bytes] = ..., cpu_products: _Optional[str] = ..., pack: _Optional[int] = ..., kv_bits: _Optional[int] = ..., group: _Optional[str] = ..., weights: _Optional[_Iterable[int]] = ...) -> None: ...

class LoadProgress(_message.Message):
    __slots__ = ("done_bytes", "total_bytes", "loaded")
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    done_bytes: int
    total_bytes: int
    loaded: Loaded
    def __init__(self, done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., loaded: _Optional[_Union[Loaded, _Mapping]] = ...) -> None: ...

class Loaded(_message.Message):
    __slots__ = ("first_layer", "last_layer", "weight_bytes", "dtype", "batches", "threads", "form", "disk", "files")
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    LAST_LAYER_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    first_layer: int
    last_layer: int
    weight_bytes: int
    dtype: str
    batches: bool
    threads: int
    form: str
    disk: bool
    files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, first_layer: _Optional[int] = ..., last_layer: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., dtype: _Optional[str] = ..., batches: bool = ..., threads: _Optional[int] = ..., form: _Optional[str] = ..., disk: bool = ..., files: _Optional[_Iterable[str]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("number", "operations", "feeds", "decode", "logits", "lane", "rest")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    FEEDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    number: int
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    feeds: _containers.RepeatedCompositeFieldContainer[Feed]
    decode: bool
    logits: bool
    lane: int
    rest: bool
    def __init__(self, number: _Optional[int] = ..., operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., feeds: _Optional[_Iterable[_Union[Feed, _Mapping]]] = ..., decode: bool = ..., logits: bool = ..., lane: _Optional[int] = ..., rest: bool = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("drop", "fork", "store", "split", "evict", "save", "restore", "erase", "leave")
    DROP_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    ERASE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    drop: int
    fork: Fork
    store: Store
    split: Split
    evict: int
    save: File
    restore: File
    erase: str
    leave: int
    def __init__(self, drop: _Optional[int] = ..., fork: _Optional[_Union[Fork, _Mapping]] = ..., store: _Optional[_Union[Store, _Mapping]] = ..., split: _Optional[_Union[Split, _Mapping]] = ..., evict: _Optional[int] = ..., save: _Optional[_Union[File, _Mapping]] = ..., restore: _Optional[_Union[File, _Mapping]] = ..., erase: _Optional[str] = ..., leave: _Optional[int] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("segment", "key")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    segment: int
    key: str
    def __init__(self, segment: _Optional[int] = ..., key: _Optional[str] = ...) -> None: ...

class Fork(_message.Message):
    __slots__ = ("sequence", "parts")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, sequence: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("segment", "length")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    segment: int
    length: int
    def __init__(self, segment: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Store(_message.Message):
    __slots__ = ("sequence", "segment", "start", "stop", "state")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    segment: int
    start: int
    stop: int
    state: bool
    def __init__(self, sequence: _Optional[int] = ..., segment: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., state: bool = ...) -> None: ...

class Split(_message.Message):
    __slots__ = ("segment", "at", "rest")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    segment: int
    at: int
    rest: int
    def __init__(self, segment: _Optional[int] = ..., at: _Optional[int] = ..., rest: _Optional[int] = ...) -> None: ...

class Feed(_message.Message):
    __slots__ = ("sequence", "tokens", "partial", "begins", "recalled")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    RECALLED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    partial: bool
    begins: bool
    recalled: int
    def __init__(self, sequence: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., partial: bool = ..., begins: bool = ..., recalled: _Optional[int] = ...) -> None: ...

class UnloadRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class UnloadReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Done(_message.Message):
    __slots__ = ("number", "memory_bytes", "error", "cache_bytes_per_token", "free_bytes", "tensor_bytes", "sent_bytes", "state_bytes", "stored_bytes", "saved", "restored", "failed", "disk_bytes", "cause", "growing_layers", "tick", "phase_seconds", "waited_seconds")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    GROWING_LAYERS_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    PHASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    memory_bytes: int
    error: str
    cache_bytes_per_token: int
    free_bytes: int
    tensor_bytes: int
    sent_bytes: int
    state_bytes: int
    stored_bytes: int
    saved: _containers.RepeatedScalarFieldContainer[str]
    restored: _containers.RepeatedScalarFieldContainer[str]
    failed: _containers.RepeatedScalarFieldContainer[str]
    disk_bytes: int
    cause: str
    growing_layers: int
    tick: bool
    phase_seconds: _containers.RepeatedScalarFieldContainer[float]
    waited_seconds: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, number: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., error: _Optional[str] = ..., cache_bytes_per_token: _Optional[int] = ..., free_bytes: _Optional[int] = ..., tensor_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., state_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., saved: _Optional[_Iterable[str]] = ..., restored: _Optional[_Iterable[str]] = ..., failed: _Optional[_Iterable[str]] = ..., disk_bytes: _Optional[int] = ..., cause: _Optional[str] = ..., growing_layers: _Optional[int] = ..., tick: bool = ..., phase_seconds: _Optional[_Iterable[float]] = ..., waited_seconds: _Optional[_Iterable[float]] = ...) -> None: ...
