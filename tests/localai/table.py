"""LocalAI's wire format as its table gives it, built with no generated code: what any other client would have."""

from __future__ import annotations

import re
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

MESSAGES = {
    "HealthMessage": "",
    "MetricsRequest": "",
    "ModelOptions": """string Model=1, int32 ContextSize=2, bool Embeddings=10, string ModelFile=21,
        string LoraAdapter=36, string DraftModel=39, bool TrustRemoteCode=51, int32 MaxModelLen=54,
        int32 TensorParallelSize=55, string ModelPath=59, repeated string Options=62, string CacheTypeKey=63,
        string CacheTypeValue=64, string EngineArgs=73, int32 Seed=3, int32 NBatch=4, bool MMap=7, int32 NGPULayers=12,
        int32 Threads=15, string FlashAttention=56""",
    "PredictOptions": """string Prompt=1, int32 Seed=2, int32 Tokens=4, int32 TopK=5, float Temperature=9,
        float Penalty=10, repeated string StopPrompts=13, bool IgnoreEOS=14, float FrequencyPenalty=17,
        float PresencePenalty=18, string LogitBias=23, bool PromptCacheAll=27, bool PromptCacheRO=28, string Grammar=29,
        float TopP=32, string PromptCachePath=33,
        repeated int32 EmbeddingTokens=35, string Embeddings=36, bool UseTokenizerTemplate=43,
        repeated Message Messages=44, string Tools=48, string ToolChoice=49, int32 Logprobs=50, int32 TopLogprobs=51,
        map<string,string> Metadata=52, float MinP=53, string ModelIdentity=54, int32 Threads=3""",
    "Message": """string role=1, string content=2, string name=3, string tool_call_id=4, string reasoning_content=5,
        string tool_calls=6""",
    "Reply": """bytes message=1, int32 tokens=2, int32 prompt_tokens=3, double timing_prompt_processing=4,
        double timing_token_generation=5, bytes logprobs=7, repeated ChatDelta chat_deltas=8""",
    "ChatDelta": "string content=1, string reasoning_content=2, repeated ToolCallDelta tool_calls=3",
    "ToolCallDelta": "int32 index=1, string id=2, string name=3, string arguments=4",
    "Result": "string message=1, bool success=2",
    "TokenizationResponse": "int32 length=1, repeated int32 tokens=2",
    "DetokenizeRequest": "repeated int32 tokens=1",
    "DetokenizeResponse": "string content=1",
    "StatusResponse": "State state=1, MemoryUsageData memory=2",
    "MemoryUsageData": "uint64 total=1, map<string,uint64> breakdown=2",
    "EmbeddingResult": "repeated float embeddings=1, int32 tokens=2, int32 dim=3, int32 prompt_tokens=4",
    "MetricsResponse": """int32 slot_id=1, string prompt_json_for_slot=2, float tokens_per_second=3,
        int32 tokens_generated=4, int32 prompt_tokens_processed=5""",
}
STATES = {"UNINITIALIZED": 0, "BUSY": 1, "READY": 2, "ERROR": -1}
METHODS = {
    "Health": ("HealthMessage", "Reply"),
    "LoadModel": ("ModelOptions", "Result"),
    "Predict": ("PredictOptions", "Reply"),
    "PredictStream": ("PredictOptions", "Reply"),
    "TokenizeString": ("PredictOptions", "TokenizationResponse"),
    "Detokenize": ("DetokenizeRequest", "DetokenizeResponse"),
    "Embedding": ("PredictOptions", "EmbeddingResult"),
    "Status": ("HealthMessage", "StatusResponse"),
    "GetMetrics": ("MetricsRequest", "MetricsResponse"),
    "Free": ("HealthMessage", "Result"),
}

_FIELD = re.compile(r"(?P<repeated>repeated )?(?P<type>map<\w+,\w+>|\w+) (?P<name>\w+)=(?P<number>\d+)")
_Field = descriptor_pb2.FieldDescriptorProto


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="table.proto", package="backend", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "StatusResponse":
            states = message.enum_type.add(name="State")
            for state, number in STATES.items():
                states.value.add(name=state, number=number)
        for match in _FIELD.finditer(fields):
            _add_field(message, match)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"backend.{name}")) for name in MESSAGES}


def _add_field(message: descriptor_pb2.DescriptorProto, match: re.Match[str]) -> None:
    name, kind = match["name"], match["type"]
    field = message.field.add(name=name, number=int(match["number"]), label=_Field.LABEL_OPTIONAL)
    if match["repeated"]:
        field.label = _Field.LABEL_REPEATED
    if kind.startswith("map<"):
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        for number, part in enumerate(kind[4:-1].split(","), start=1):
            inner = entry.field.add(name=("key", "value")[number - 1], number=number, label=_Field.LABEL_OPTIONAL)
            inner.type = getattr(_Field, f"TYPE_{part.upper()}")
        field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
        field.type_name = f".backend.{message.name}.{entry.name}"
    elif kind == "State":
        field.type, field.type_name = _Field.TYPE_ENUM, ".backend.StatusResponse.State"
    elif kind in MESSAGES:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".backend.{kind}"
    else:
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")


TYPES = _build()


class Client:
    """One method each: `client.Predict(Prompt="Hi", Tokens=4)`."""

    def __init__(self, address: str, token: str | None = None) -> None:
        size = 50 * 1024 * 1024
        options = [("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", size)]
        self._channel = grpc.insecure_channel(address, options=options)
        self._metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()

    def __getattr__(self, method: str) -> Any:
        if method not in METHODS:
            raise AttributeError(method)
        asks, answers = METHODS[method]
        kind = self._channel.unary_stream if method == "PredictStream" else self._channel.unary_unary
        call = kind(
            f"/backend.Backend/{method}",
            request_serializer=TYPES[asks].SerializeToString,
            response_deserializer=TYPES[answers].FromString,
        )

        def invoke(timeout: float = 120, wait_for_ready: bool = False, **fields: Any) -> Any:
            request = TYPES[asks](**fields)
            return call(request, timeout=timeout, metadata=self._metadata, wait_for_ready=wait_for_ready)

        return invoke

    def close(self) -> None:
        self._channel.close()


def message(role: str, content: str, **more: str) -> Any:
    return TYPES["Message"](role=role, content=content, **more)


def state_name(number: int) -> str:
    return next(name for name, value in STATES.items() if value == number)
