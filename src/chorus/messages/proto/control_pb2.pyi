from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

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
