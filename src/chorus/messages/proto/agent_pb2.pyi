from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("cables", "software")
    CABLES_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    cables: bool
    software: bool
    def __init__(self, cables: bool = ..., software: bool = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("version", "host", "device", "memory_total", "memory_available", "cores", "disk_free", "draining", "door_port", "ranks", "backend", "python", "models_folder", "certificate_request", "addresses", "rdma_ports", "meeting_addresses", "log_file", "memory_booked", "memory_unbooked", "clock", "up_seconds", "mlx", "mlx_lm", "system")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DOOR_PORT_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    MODELS_FOLDER_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    RDMA_PORTS_FIELD_NUMBER: _ClassVar[int]
    MEETING_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    LOG_FILE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BOOKED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_UNBOOKED_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    UP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MLX_FIELD_NUMBER: _ClassVar[int]
    MLX_LM_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    version: str
    host: str
    device: str
    memory_total: int
    memory_available: int
    cores: int
    disk_free: int
    draining: bool
    door_port: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankState]
    backend: str
    python: str
    models_folder: str
    certificate_request: bytes
    addresses: _containers.RepeatedCompositeFieldContainer[NodeAddress]
    rdma_ports: _containers.RepeatedCompositeFieldContainer[RdmaPort]
    meeting_addresses: _containers.RepeatedScalarFieldContainer[str]
    log_file: str
    memory_booked: int
    memory_unbooked: int
    clock: float
    up_seconds: float
    mlx: str
    mlx_lm: str
    system: str
    def __init__(self, version: _Optional[str] = ..., host: _Optional[str] = ..., device: _Optional[str] = ..., memory_total: _Optional[int] = ..., memory_available: _Optional[int] = ..., cores: _Optional[int] = ..., disk_free: _Optional[int] = ..., draining: bool = ..., door_port: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankState, _Mapping]]] = ..., backend: _Optional[str] = ..., python: _Optional[str] = ..., models_folder: _Optional[str] = ..., certificate_request: _Optional[bytes] = ..., addresses: _Optional[_Iterable[_Union[NodeAddress, _Mapping]]] = ..., rdma_ports: _Optional[_Iterable[_Union[RdmaPort, _Mapping]]] = ..., meeting_addresses: _Optional[_Iterable[str]] = ..., log_file: _Optional[str] = ..., memory_booked: _Optional[int] = ..., memory_unbooked: _Optional[int] = ..., clock: _Optional[float] = ..., up_seconds: _Optional[float] = ..., mlx: _Optional[str] = ..., mlx_lm: _Optional[str] = ..., system: _Optional[str] = ...) -> None: ...

class NodeAddress(_message.Message):
    __slots__ = ("ip", "interface", "kind", "bits_per_second")
    IP_FIELD_NUMBER: _ClassVar[int]
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ip: str
    interface: str
    kind: str
    bits_per_second: int
    def __init__(self, ip: _Optional[str] = ..., interface: _Optional[str] = ..., kind: _Optional[str] = ..., bits_per_second: _Optional[int] = ...) -> None: ...

class RdmaPort(_message.Message):
    __slots__ = ("device", "own_end", "other_end", "obstacle")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    OWN_END_FIELD_NUMBER: _ClassVar[int]
    OTHER_END_FIELD_NUMBER: _ClassVar[int]
    OBSTACLE_FIELD_NUMBER: _ClassVar[int]
    device: str
    own_end: str
    other_end: str
    obstacle: str
    def __init__(self, device: _Optional[str] = ..., own_end: _Optional[str] = ..., other_end: _Optional[str] = ..., obstacle: _Optional[str] = ...) -> None: ...

class ProfileRequest(_message.Message):
    __slots__ = ("memory_fraction",)
    MEMORY_FRACTION_FIELD_NUMBER: _ClassVar[int]
    memory_fraction: float
    def __init__(self, memory_fraction: _Optional[float] = ...) -> None: ...

class ProfileReply(_message.Message):
    __slots__ = ("node", "chip")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CHIP_FIELD_NUMBER: _ClassVar[int]
    node: str
    chip: str
    def __init__(self, node: _Optional[str] = ..., chip: _Optional[str] = ...) -> None: ...

class SpawnRequest(_message.Message):
    __slots__ = ("session", "rank", "model", "share", "files", "sources", "environment", "threads", "log_level", "silence_seconds", "port", "needs", "more", "most")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    SILENCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    session: str
    rank: int
    model: str
    share: str
    files: _containers.RepeatedCompositeFieldContainer[ModelFile]
    sources: _containers.RepeatedCompositeFieldContainer[FileSource]
    environment: _containers.ScalarMap[str, str]
    threads: int
    log_level: str
    silence_seconds: float
    port: int
    needs: int
    more: bool
    most: int
    def __init__(self, session: _Optional[str] = ..., rank: _Optional[int] = ..., model: _Optional[str] = ..., share: _Optional[str] = ..., files: _Optional[_Iterable[_Union[ModelFile, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[FileSource, _Mapping]]] = ..., environment: _Optional[_Mapping[str, str]] = ..., threads: _Optional[int] = ..., log_level: _Optional[str] = ..., silence_seconds: _Optional[float] = ..., port: _Optional[int] = ..., needs: _Optional[int] = ..., more: bool = ..., most: _Optional[int] = ...) -> None: ...

class ModelFile(_message.Message):
    __slots__ = ("name", "size", "fingerprint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    fingerprint: str
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class FileSource(_message.Message):
    __slots__ = ("address", "files")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    address: str
    files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, address: _Optional[str] = ..., files: _Optional[_Iterable[str]] = ...) -> None: ...

class OfferRequest(_message.Message):
    __slots__ = ("model", "share", "files")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    model: str
    share: str
    files: _containers.RepeatedCompositeFieldContainer[ModelFile]
    def __init__(self, model: _Optional[str] = ..., share: _Optional[str] = ..., files: _Optional[_Iterable[_Union[ModelFile, _Mapping]]] = ...) -> None: ...

class OfferReply(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, files: _Optional[_Iterable[str]] = ...) -> None: ...

class SpawnProgress(_message.Message):
    __slots__ = ("detail", "done_bytes", "total_bytes", "started")
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    detail: str
    done_bytes: int
    total_bytes: int
    started: Started
    def __init__(self, detail: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., started: _Optional[_Union[Started, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("port", "pid", "model_path")
    PORT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    port: int
    pid: int
    model_path: str
    def __init__(self, port: _Optional[int] = ..., pid: _Optional[int] = ..., model_path: _Optional[str] = ...) -> None: ...

class KillRequest(_message.Message):
    __slots__ = ("session", "abandoned")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    session: str
    abandoned: bool
    def __init__(self, session: _Optional[str] = ..., abandoned: bool = ...) -> None: ...

class KillReply(_message.Message):
    __slots__ = ("ended",)
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ended: int
    def __init__(self, ended: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sent_at", "node")
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    sent_at: float
    node: Node
    def __init__(self, sent_at: _Optional[float] = ..., node: _Optional[_Union[Node, _Mapping]] = ...) -> None: ...

class RankState(_message.Message):
    __slots__ = ("session", "rank", "pid", "port", "running", "exit_code", "step", "memory_bytes", "loaded_bytes", "total_bytes", "step_at", "last_words", "model", "loss_cause", "loss_told", "booked_bytes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_WORDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LOSS_CAUSE_FIELD_NUMBER: _ClassVar[int]
    LOSS_TOLD_FIELD_NUMBER: _ClassVar[int]
    BOOKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    session: str
    rank: int
    pid: int
    port: int
    running: bool
    exit_code: int
    step: int
    memory_bytes: int
    loaded_bytes: int
    total_bytes: int
    step_at: float
    last_words: str
    model: str
    loss_cause: str
    loss_told: str
    booked_bytes: int
    def __init__(self, session: _Optional[str] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ..., port: _Optional[int] = ..., running: bool = ..., exit_code: _Optional[int] = ..., step: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., loaded_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., step_at: _Optional[float] = ..., last_words: _Optional[str] = ..., model: _Optional[str] = ..., loss_cause: _Optional[str] = ..., loss_told: _Optional[str] = ..., booked_bytes: _Optional[int] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("lines", "follow")
    LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    lines: int
    follow: bool
    def __init__(self, lines: _Optional[int] = ..., follow: bool = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelsReply(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class PeersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PeersReply(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("draining",)
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    draining: bool
    def __init__(self, draining: bool = ...) -> None: ...

class ExpelRequest(_message.Message):
    __slots__ = ("signed_list",)
    SIGNED_LIST_FIELD_NUMBER: _ClassVar[int]
    signed_list: str
    def __init__(self, signed_list: _Optional[str] = ...) -> None: ...

class ExpelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    def __init__(self, certificate: _Optional[bytes] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("node_id", "addresses", "measure")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    measure: bool
    def __init__(self, node_id: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., measure: bool = ...) -> None: ...

class ProbeReply(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedCompositeFieldContainer[ProbedAddress]
    def __init__(self, addresses: _Optional[_Iterable[_Union[ProbedAddress, _Mapping]]] = ...) -> None: ...

class ProbedAddress(_message.Message):
    __slots__ = ("problem", "own_ip", "round_trip_seconds", "bytes_per_second")
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    OWN_IP_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    problem: str
    own_ip: str
    round_trip_seconds: float
    bytes_per_second: float
    def __init__(self, problem: _Optional[str] = ..., own_ip: _Optional[str] = ..., round_trip_seconds: _Optional[float] = ..., bytes_per_second: _Optional[float] = ...) -> None: ...
