from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNLOADED: _ClassVar[ModelState]
    WAITING: _ClassVar[ModelState]
    LOADING: _ClassVar[ModelState]
    READY: _ClassVar[ModelState]
    DRAINING: _ClassVar[ModelState]
    FAILED: _ClassVar[ModelState]
UNLOADED: ModelState
WAITING: ModelState
LOADING: ModelState
READY: ModelState
DRAINING: ModelState
FAILED: ModelState

class RestartFrontEndRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestartFrontEndReply(_message.Message):
    __slots__ = ("pid", "finishing_pid")
    PID_FIELD_NUMBER: _ClassVar[int]
    FINISHING_PID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    finishing_pid: int
    def __init__(self, pid: _Optional[int] = ..., finishing_pid: _Optional[int] = ...) -> None: ...

class ReplanRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReplanReply(_message.Message):
    __slots__ = ("told",)
    TOLD_FIELD_NUMBER: _ClassVar[int]
    told: str
    def __init__(self, told: _Optional[str] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("version", "models", "pulls")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PULLS_FIELD_NUMBER: _ClassVar[int]
    version: int
    models: _containers.RepeatedCompositeFieldContainer[Model]
    pulls: _containers.RepeatedCompositeFieldContainer[PullRow]
    def __init__(self, version: _Optional[int] = ..., models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., pulls: _Optional[_Iterable[_Union[PullRow, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("id", "state", "settings", "detail", "progress", "loaded_bytes", "total_bytes", "booked_bytes", "ranks", "nodes", "pinned", "until", "loaded_at", "loads")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    BOOKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    LOADED_AT_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: ModelState
    settings: str
    detail: str
    progress: float
    loaded_bytes: int
    total_bytes: int
    booked_bytes: int
    ranks: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    pinned: bool
    until: float
    loaded_at: float
    loads: int
    def __init__(self, id: _Optional[str] = ..., state: _Optional[_Union[ModelState, str]] = ..., settings: _Optional[str] = ..., detail: _Optional[str] = ..., progress: _Optional[float] = ..., loaded_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., booked_bytes: _Optional[int] = ..., ranks: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ..., pinned: bool = ..., until: _Optional[float] = ..., loaded_at: _Optional[float] = ..., loads: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("seen", "demands")
    SEEN_FIELD_NUMBER: _ClassVar[int]
    DEMANDS_FIELD_NUMBER: _ClassVar[int]
    seen: int
    demands: _containers.RepeatedCompositeFieldContainer[Demand]
    def __init__(self, seen: _Optional[int] = ..., demands: _Optional[_Iterable[_Union[Demand, _Mapping]]] = ...) -> None: ...

class Demand(_message.Message):
    __slots__ = ("id", "waiting", "oldest_seconds", "running", "served", "keep_alive_seconds")
    ID_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    OLDEST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    KEEP_ALIVE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    waiting: int
    oldest_seconds: float
    running: int
    served: int
    keep_alive_seconds: float
    def __init__(self, id: _Optional[str] = ..., waiting: _Optional[int] = ..., oldest_seconds: _Optional[float] = ..., running: _Optional[int] = ..., served: _Optional[int] = ..., keep_alive_seconds: _Optional[float] = ...) -> None: ...

class FindRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class FindReply(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("name", "force")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    force: bool
    def __init__(self, name: _Optional[str] = ..., force: bool = ...) -> None: ...

class LoadReply(_message.Message):
    __slots__ = ("id", "told")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    id: str
    told: str
    def __init__(self, id: _Optional[str] = ..., told: _Optional[str] = ...) -> None: ...

class UnloadRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnloadReply(_message.Message):
    __slots__ = ("id", "told")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    id: str
    told: str
    def __init__(self, id: _Optional[str] = ..., told: _Optional[str] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("told", "started_at")
    TOLD_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    told: str
    started_at: float
    def __init__(self, told: _Optional[str] = ..., started_at: _Optional[float] = ...) -> None: ...

class PullRow(_message.Message):
    __slots__ = ("name", "detail", "done_bytes", "total_bytes", "ended", "failure", "started_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    detail: str
    done_bytes: int
    total_bytes: int
    ended: bool
    failure: str
    started_at: float
    def __init__(self, name: _Optional[str] = ..., detail: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., ended: bool = ..., failure: _Optional[str] = ..., started_at: _Optional[float] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("name", "add")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    name: str
    add: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., add: _Optional[_Iterable[str]] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("plans",)
    PLANS_FIELD_NUMBER: _ClassVar[int]
    plans: str
    def __init__(self, plans: _Optional[str] = ...) -> None: ...
