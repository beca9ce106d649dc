from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Recording(_message.Message):
    __slots__ = ("begins", "ends", "phases", "ranks", "steps", "sent_bytes", "received_bytes", "full", "facts")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: StepFacts
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[StepFacts, _Mapping]] = ...) -> None: ...
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    begins: _containers.RepeatedScalarFieldContainer[float]
    ends: _containers.RepeatedScalarFieldContainer[float]
    phases: _containers.RepeatedScalarFieldContainer[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    steps: _containers.RepeatedScalarFieldContainer[int]
    sent_bytes: _containers.RepeatedScalarFieldContainer[int]
    received_bytes: _containers.RepeatedScalarFieldContainer[int]
    full: bool
    facts: _containers.MessageMap[int, StepFacts]
    def __init__(self, begins: _Optional[_Iterable[float]] = ..., ends: _Optional[_Iterable[float]] = ..., phases: _Optional[_Iterable[int]] = ..., ranks: _Optional[_Iterable[int]] = ..., steps: _Optional[_Iterable[int]] = ..., sent_bytes: _Optional[_Iterable[int]] = ..., received_bytes: _Optional[_Iterable[int]] = ..., full: bool = ..., facts: _Optional[_Mapping[int, StepFacts]] = ...) -> None: ...

class StepFacts(_message.Message):
    __slots__ = ("kind", "rows", "tokens")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    rows: int
    tokens: int
    def __init__(self, kind: _Optional[str] = ..., rows: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...
