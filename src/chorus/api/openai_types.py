"""OpenAI's request bodies, strictly typed: an unknown field, or one that cannot be honoured, is refused by name.

Union tags are written <so>: they show up in pydantic's error locations, and errors.field_path leaves them out.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, LiteralString

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

NonEmpty = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0, lt=2**32)]

# What a protocol field may say and mean nothing more than its absence does.
_Harmless = tuple[Any, ...]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def _by_json_type(value: Any) -> str:
    if isinstance(value, list):
        return "<list>"
    return "<string>"


StopStrings = Annotated[
    Annotated[NonEmpty, Tag("<string>")] | Annotated[list[NonEmpty], Tag("<list>")], Discriminator(_by_json_type)
]


class StreamOptions(_Body):
    include_usage: bool | None = None


class SamplingFields(_Body):
    """The fields that chat and completions share."""

    # Extra fields are let in only so that those of the protocol can be told from the unknown ones.
    model_config = ConfigDict(extra="allow")

    # Fields of the protocol that are not served, each with the values that ask for nothing.
    unserved: ClassVar[dict[str, _Harmless]] = {}

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    repetition_context_size: int | None = Field(default=None, ge=1, lt=2**31)
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    stop: StopStrings | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1)
    user: str | None = None
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def _refuse_what_is_not_served(self) -> SamplingFields:
        for name, value in (self.model_extra or {}).items():
            if name not in self.unserved:
                raise refused("extra_forbidden", name, "unknown")
            if value is not None and not _among(value, self.unserved[name]):
                raise refused("unsupported", name, "not supported yet; leave it out")
        return self

    @field_validator("n")
    @classmethod
    def _one_choice(cls, value: int | None) -> int | None:
        if value is not None and value != 1:
            raise PydanticCustomError("unsupported", "only one choice per request is supported yet; leave it out")
        return value

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise refused("refused", "stream_options", "allowed only with stream: true")
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class TextPart(_Body):
    type: Literal["text"]
    text: str


class OtherPart(BaseModel):
    """Anything that is not text; the served model reads text only."""

    type: str

    @model_validator(mode="after")
    def _refuse(self) -> OtherPart:
        raise PydanticCustomError(
            "unsupported",
            "{kind} parts are not supported, the served model reads text only",
            {"kind": self.type},
        )


def _part_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return "<other>" if isinstance(kind, str) and kind != "text" else "<text>"


Part = Annotated[Annotated[TextPart, Tag("<text>")] | Annotated[OtherPart, Tag("<other>")], Discriminator(_part_kind)]
Content = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[Part], Tag("<list>")], Discriminator(_by_json_type)
]


class FunctionCall(_Body):
    name: NonEmpty
    arguments: str


class ToolCall(_Body):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class _Message(_Body):
    content: Content
    name: str | None = None

    @property
    def text(self) -> str:
        return joined(self.content)


class SystemMessage(_Message):
    role: Literal["system", "developer"]


class UserMessage(_Message):
    role: Literal["user"]


class ToolMessage(_Message):
    role: Literal["tool"]
    tool_call_id: str


class AssistantMessage(_Body):
    """An earlier answer, often sent back as the client library dumped it, with its empty fields."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and not self.tool_calls:
            raise refused("refused", "content", "an assistant message needs content or tool_calls")
        return self

    @property
    def text(self) -> str:
        return "" if self.content is None else joined(self.content)


def _role(value: Any) -> str | None:
    role = value.get("role") if isinstance(value, dict) else None
    tags = {
        "system": "<system>",
        "developer": "<system>",
        "user": "<user>",
        "assistant": "<assistant>",
        "tool": "<tool>",
    }
    return tags.get(role, "<unknown>") if isinstance(role, str) else "<unknown>"


class UnknownMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]


Message = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")]
    | Annotated[UnknownMessage, Tag("<unknown>")],
    Discriminator(_role),
]


class ChatRequest(SamplingFields):
    unserved: ClassVar[dict[str, _Harmless]] = {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
        "service_tier": ("auto", "default"),
    }

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    # Notes of the client's own. They change nothing in the answer, so they are taken and not kept.
    metadata: dict[str, str] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def _prompt_kind(value: Any) -> str:
    if not isinstance(value, list):
        return "<string>"
    return "<tokens>" if value and all(isinstance(item, int) for item in value) else "<list>"


Prompt = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[TokenId], Tag("<tokens>")]
    | Annotated[
        list[
            Annotated[
                Annotated[str, Tag("<string>")] | Annotated[list[TokenId], Tag("<list>")], Discriminator(_by_json_type)
            ]
        ],
        Field(min_length=1),
        Tag("<list>"),
    ],
    Discriminator(_prompt_kind),
]


class CompletionRequest(SamplingFields):
    unserved: ClassVar[dict[str, _Harmless]] = {
        "echo": (False,),
        "suffix": ("",),
        "logprobs": (),
        "best_of": (1,),
    }

    prompt: Prompt

    @field_validator("prompt")
    @classmethod
    def _one_prompt(cls, value: Any) -> Any:
        if isinstance(value, list) and len(value) > 1 and not isinstance(value[0], int):
            raise PydanticCustomError("unsupported", "several prompts in one request are not supported yet")
        return value

    @property
    def text_or_tokens(self) -> str | list[int]:
        """One prompt, taken out of the list it may come in."""
        if isinstance(self.prompt, list) and not isinstance(self.prompt[0], int):
            return self.prompt[0]
        return self.prompt


def joined(content: str | list[TextPart] | list[Any]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def refused(kind: LiteralString, field: str, message: str) -> ValidationError:
    """A validator of a whole model cannot name a field by itself; this error can."""
    error = PydanticCustomError(kind, "{message}", {"message": message})
    return ValidationError.from_exception_data("request", [InitErrorDetails(type=error, loc=(field,), input=None)])


def _among(value: Any, harmless: _Harmless) -> bool:
    # Equality alone would let 0 pass for False.
    return any(type(value) is type(other) and value == other for other in harmless)
