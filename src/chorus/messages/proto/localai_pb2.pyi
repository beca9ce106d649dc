from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HealthMessage(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelOptions(_message.Message):
    __slots__ = ("Model", "ContextSize", "Embeddings", "RopeFreqBase", "RopeFreqScale", "ModelFile", "Tokenizer", "LoraAdapter", "DraftModel", "Quantization", "MMProj", "RopeScaling", "GPUMemoryUtilization", "TrustRemoteCode", "MaxModelLen", "TensorParallelSize", "LoadFormat", "ModelPath", "LoraAdapters", "Options", "CacheTypeKey", "CacheTypeValue", "DType", "Overrides", "EngineArgs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONTEXTSIZE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    ROPEFREQBASE_FIELD_NUMBER: _ClassVar[int]
    ROPEFREQSCALE_FIELD_NUMBER: _ClassVar[int]
    MODELFILE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    LORAADAPTER_FIELD_NUMBER: _ClassVar[int]
    DRAFTMODEL_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    MMPROJ_FIELD_NUMBER: _ClassVar[int]
    ROPESCALING_FIELD_NUMBER: _ClassVar[int]
    GPUMEMORYUTILIZATION_FIELD_NUMBER: _ClassVar[int]
    TRUSTREMOTECODE_FIELD_NUMBER: _ClassVar[int]
    MAXMODELLEN_FIELD_NUMBER: _ClassVar[int]
    TENSORPARALLELSIZE_FIELD_NUMBER: _ClassVar[int]
    LOADFORMAT_FIELD_NUMBER: _ClassVar[int]
    MODELPATH_FIELD_NUMBER: _ClassVar[int]
    LORAADAPTERS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CACHETYPEKEY_FIELD_NUMBER: _ClassVar[int]
    CACHETYPEVALUE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    ENGINEARGS_FIELD_NUMBER: _ClassVar[int]
    Model: str
    ContextSize: int
    Embeddings: bool
    RopeFreqBase: float
    RopeFreqScale: float
    ModelFile: str
    Tokenizer: str
    LoraAdapter: str
    DraftModel: str
    Quantization: str
    MMProj: str
    RopeScaling: str
    GPUMemoryUtilization: float
    TrustRemoteCode: bool
    MaxModelLen: int
    TensorParallelSize: int
    LoadFormat: str
    ModelPath: str
    LoraAdapters: _containers.RepeatedScalarFieldContainer[str]
    Options: _containers.RepeatedScalarFieldContainer[str]
    CacheTypeKey: str
    CacheTypeValue: str
    DType: str
    Overrides: _containers.RepeatedScalarFieldContainer[str]
    EngineArgs: str
    def __init__(self, Model: _Optional[str] = ..., ContextSize: _Optional[int] = ..., Embeddings: bool = ..., RopeFreqBase: _Optional[float] = ..., RopeFreqScale: _Optional[float] = ..., ModelFile: _Optional[str] = ..., Tokenizer: _Optional[str] = ..., LoraAdapter: _Optional[str] = ..., DraftModel: _Optional[str] = ..., Quantization: _Optional[str] = ..., MMProj: _Optional[str] = ..., RopeScaling: _Optional[str] = ..., GPUMemoryUtilization: _Optional[float] = ..., TrustRemoteCode: bool = ..., MaxModelLen: _Optional[int] = ..., TensorParallelSize: _Optional[int] = ..., LoadFormat: _Optional[str] = ..., ModelPath: _Optional[str] = ..., LoraAdapters: _Optional[_Iterable[str]] = ..., Options: _Optional[_Iterable[str]] = ..., CacheTypeKey: _Optional[str] = ..., CacheTypeValue: _Optional[str] = ..., DType: _Optional[str] = ..., Overrides: _Optional[_Iterable[str]] = ..., EngineArgs: _Optional[str] = ...) -> None: ...

class PredictOptions(_message.Message):
    __slots__ = ("Prompt", "Seed", "Tokens", "TopK", "Temperature", "Penalty", "StopPrompts", "IgnoreEOS", "FrequencyPenalty", "PresencePenalty", "LogitBias", "PromptCacheAll", "PromptCacheRO", "Grammar", "TopP", "PromptCachePath", "EmbeddingTokens", "Embeddings", "UseTokenizerTemplate", "Messages", "Tools", "ToolChoice", "Logprobs", "TopLogprobs", "Metadata", "MinP", "ModelIdentity")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOPK_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    PENALTY_FIELD_NUMBER: _ClassVar[int]
    STOPPROMPTS_FIELD_NUMBER: _ClassVar[int]
    IGNOREEOS_FIELD_NUMBER: _ClassVar[int]
    FREQUENCYPENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCEPENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGITBIAS_FIELD_NUMBER: _ClassVar[int]
    PROMPTCACHEALL_FIELD_NUMBER: _ClassVar[int]
    PROMPTCACHERO_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    TOPP_FIELD_NUMBER: _ClassVar[int]
    PROMPTCACHEPATH_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGTOKENS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    USETOKENIZERTEMPLATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOLCHOICE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOPLOGPROBS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MINP_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    Prompt: str
    Seed: int
    Tokens: int
    TopK: int
    Temperature: float
    Penalty: float
    StopPrompts: _containers.RepeatedScalarFieldContainer[str]
    IgnoreEOS: bool
    FrequencyPenalty: float
    PresencePenalty: float
    LogitBias: str
    PromptCacheAll: bool
    PromptCacheRO: bool
    Grammar: str
    TopP: float
    PromptCachePath: str
    EmbeddingTokens: _containers.RepeatedScalarFieldContainer[int]
    Embeddings: str
    UseTokenizerTemplate: bool
    Messages: _containers.RepeatedCompositeFieldContainer[Message]
    Tools: str
    ToolChoice: str
    Logprobs: int
    TopLogprobs: int
    Metadata: _containers.ScalarMap[str, str]
    MinP: float
    ModelIdentity: str
    def __init__(self, Prompt: _Optional[str] = ..., Seed: _Optional[int] = ..., Tokens: _Optional[int] = ..., TopK: _Optional[int] = ..., Temperature: _Optional[float] = ..., Penalty: _Optional[float] = ..., StopPrompts: _Optional[_Iterable[str]] = ..., IgnoreEOS: bool = ..., FrequencyPenalty: _Optional[float] = ..., PresencePenalty: _Optional[float] = ..., LogitBias: _Optional[str] = ..., PromptCacheAll: bool = ..., PromptCacheRO: bool = ..., Grammar: _Optional[str] = ..., TopP: _Optional[float] = ..., PromptCachePath: _Optional[str] = ..., EmbeddingTokens: _Optional[_Iterable[int]] = ..., Embeddings: _Optional[str] = ..., UseTokenizerTemplate: bool = ..., Messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., Tools: _Optional[str] = ..., ToolChoice: _Optional[str] = ..., Logprobs: _Optional[int] = ..., TopLogprobs: _Optional[int] = ..., Metadata: _Optional[_Mapping[str, str]] = ..., MinP: _Optional[float] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content", "name", "tool_call_id", "reasoning_content", "tool_calls")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    REASONING_CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    name: str
    tool_call_id: str
    reasoning_content: str
    tool_calls: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., name: _Optional[str] = ..., tool_call_id: _Optional[str] = ..., reasoning_content: _Optional[str] = ..., tool_calls: _Optional[str] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("message", "tokens", "prompt_tokens", "timing_prompt_processing", "timing_token_generation", "logprobs", "chat_deltas")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMING_PROMPT_PROCESSING_FIELD_NUMBER: _ClassVar[int]
    TIMING_TOKEN_GENERATION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CHAT_DELTAS_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    tokens: int
    prompt_tokens: int
    timing_prompt_processing: float
    timing_token_generation: float
    logprobs: bytes
    chat_deltas: _containers.RepeatedCompositeFieldContainer[ChatDelta]
    def __init__(self, message: _Optional[bytes] = ..., tokens: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., timing_prompt_processing: _Optional[float] = ..., timing_token_generation: _Optional[float] = ..., logprobs: _Optional[bytes] = ..., chat_deltas: _Optional[_Iterable[_Union[ChatDelta, _Mapping]]] = ...) -> None: ...

class ChatDelta(_message.Message):
    __slots__ = ("content", "reasoning_content", "tool_calls")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    REASONING_CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    content: str
    reasoning_content: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCallDelta]
    def __init__(self, content: _Optional[str] = ..., reasoning_content: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCallDelta, _Mapping]]] = ...) -> None: ...

class ToolCallDelta(_message.Message):
    __slots__ = ("index", "id", "name", "arguments")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    arguments: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("message", "success")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    message: str
    success: bool
    def __init__(self, message: _Optional[str] = ..., success: bool = ...) -> None: ...

class TokenizationResponse(_message.Message):
    __slots__ = ("length", "tokens")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    length: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, length: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: str
    def __init__(self, content: _Optional[str] = ...) -> None: ...

class EmbeddingResult(_message.Message):
    __slots__ = ("embeddings", "tokens", "dim", "prompt_tokens")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedScalarFieldContainer[float]
    tokens: int
    dim: int
    prompt_tokens: int
    def __init__(self, embeddings: _Optional[_Iterable[float]] = ..., tokens: _Optional[int] = ..., dim: _Optional[int] = ..., prompt_tokens: _Optional[int] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("state", "memory")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNINITIALIZED: _ClassVar[StatusResponse.State]
        BUSY: _ClassVar[StatusResponse.State]
        READY: _ClassVar[StatusResponse.State]
        ERROR: _ClassVar[StatusResponse.State]
    UNINITIALIZED: StatusResponse.State
    BUSY: StatusResponse.State
    READY: StatusResponse.State
    ERROR: StatusResponse.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    state: StatusResponse.State
    memory: MemoryUsageData
    def __init__(self, state: _Optional[_Union[StatusResponse.State, str]] = ..., memory: _Optional[_Union[MemoryUsageData, _Mapping]] = ...) -> None: ...

class MemoryUsageData(_message.Message):
    __slots__ = ("total", "breakdown")
    class BreakdownEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    BREAKDOWN_FIELD_NUMBER: _ClassVar[int]
    total: int
    breakdown: _containers.ScalarMap[str, int]
    def __init__(self, total: _Optional[int] = ..., breakdown: _Optional[_Mapping[str, int]] = ...) -> None: ...

class MetricsResponse(_message.Message):
    __slots__ = ("slot_id", "prompt_json_for_slot", "tokens_per_second", "tokens_generated", "prompt_tokens_processed")
    SLOT_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_JSON_FOR_SLOT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TOKENS_GENERATED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_PROCESSED_FIELD_NUMBER: _ClassVar[int]
    slot_id: int
    prompt_json_for_slot: str
    tokens_per_second: float
    tokens_generated: int
    prompt_tokens_processed: int
    def __init__(self, slot_id: _Optional[int] = ..., prompt_json_for_slot: _Optional[str] = ..., tokens_per_second: _Optional[float] = ..., tokens_generated: _Optional[int] = ..., prompt_tokens_processed: _Optional[int] = ...) -> None: ...
