"""The body of an Anthropic request."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from chorus.api.fields import (
    Harmless,
    Name,
    NonEmpty,
    PositiveCount,
    StrictModel,
    Undescribed,
    by_json_type,
)
from chorus.api.openai.chat.request import FunctionName
from chorus.api.openai.sampling import schema_grammar
from chorus.api.sharing import SharingFields
from chorus.config.sampling import Temperature, TopK, TopP
from chorus.config.sections import Limits
from chorus.messages.grammar import Grammar
from chorus.serving.requests.tools import Tool, ToolChoice


class CacheControl(StrictModel):
    """Prefixes are cached without being asked; the mark has them kept longer, wherever it stands."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: str | None = None


class _Block(StrictModel):
    cache_control: CacheControl | None = None


class TextBlock(_Block):
    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class ThinkingBlock(StrictModel):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(_Block):
    type: Literal["tool_use"]
    id: NonEmpty
    name: NonEmpty
    input: dict[str, Any]
    caller: Any = None


class OtherBlock(Undescribed):
    type: str

    @model_validator(mode="after")
    def _refuse(self) -> OtherBlock:
        raise PydanticCustomError(
            "unsupported",
            "{kind} blocks are not supported, the served model reads text only",
            {"kind": self.type},
        )


def _kind(*known: str) -> Discriminator:
    def tag(value: Any) -> str:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str):
            return "<text>"
        return f"<{kind}>" if kind in known else "<other>"

    return Discriminator(tag)


PlainBlock = Annotated[Annotated[TextBlock, Tag("<text>")] | Annotated[OtherBlock, Tag("<other>")], _kind("text")]
PlainContent = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[PlainBlock], Tag("<list>")], Discriminator(by_json_type)
]


class ToolReferenceBlock(_Block):
    """What a search for tools found: a tool that was left out of the leading ones until now."""

    type: Literal["tool_reference"]
    tool_name: NonEmpty


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ToolReferenceBlock, Tag("<tool_reference>")]
    | Annotated[OtherBlock, Tag("<other>")],
    _kind("text", "tool_reference"),
]
ResultContent = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[ResultBlock], Tag("<list>")], Discriminator(by_json_type)
]


class ToolResultBlock(_Block):
    type: Literal["tool_result"]
    tool_use_id: NonEmpty
    content: ResultContent | None = None
    is_error: bool | None = None


Block = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | Annotated[OtherBlock, Tag("<other>")],
    _kind("text", "thinking", "tool_use", "tool_result"),
]


class InputMessage(StrictModel):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[str, Tag("<string>")] | Annotated[list[Block], Tag("<list>")], Discriminator(by_json_type)
    ]


class ToolDefinition(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: FunctionName
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    cache_control: CacheControl | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    """Shown to the model where a result refers to it."""

    def as_tool(self) -> Tool:
        return Tool(
            self.name, self.description, self.input_schema, bool(self.strict), deferred=bool(self.defer_loading)
        )


class OtherTool(Undescribed):
    type: str

    @model_validator(mode="after")
    def _refuse(self) -> OtherTool:
        raise PydanticCustomError("unsupported", "{kind} tools run at Anthropic only", {"kind": self.type})


def _tool_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return "<other>" if isinstance(kind, str) and kind != "custom" else "<custom>"


ToolField = Annotated[
    Annotated[ToolDefinition, Tag("<custom>")] | Annotated[OtherTool, Tag("<other>")], Discriminator(_tool_kind)
]


class ToolChoiceField(StrictModel):
    type: Literal["auto", "any", "tool", "none"]
    name: NonEmpty | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(StrictModel):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: PositiveCount | None = None
    """Given to the template; a model that has no place for it thinks as long as it likes."""
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    type: Literal["json_schema"]
    # The name is taken by pydantic.
    definition: dict[str, Any] = Field(alias="schema")


class OutputConfig(StrictModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(StrictModel):
    user_id: Name | None = None


class ThinkingEdit(StrictModel):
    """Earlier thoughts are given to the template as they come, so only the wish to keep them all is met."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class ContextManagement(StrictModel):
    edits: list[ThinkingEdit] = Field(default_factory=list)


class CountRequest(SharingFields):
    """What tokens are counted of; also what a message request has besides its limits."""

    unserved: ClassVar[dict[str, Harmless]] = {"mcp_servers": ([],), "container": ()}

    messages: list[InputMessage] = Field(min_length=1)
    model: Name | None = None
    system: PlainContent | None = None
    tools: list[ToolField] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None

    def offered_tools(self) -> list[Tool]:
        return [tool.as_tool() for tool in self.tools or () if isinstance(tool, ToolDefinition)]

    @property
    def pins(self) -> bool:
        system = self.system if isinstance(self.system, list) else []
        contents = [message.content for message in self.messages if isinstance(message.content, list)]
        blocks = [*system, *(block for content in contents for block in content)]
        results = [block.content for block in blocks if isinstance(block, ToolResultBlock)]
        inner = [block for content in results if isinstance(content, list) for block in content]
        marked = (self, *blocks, *inner, *(self.tools or ()))
        return any(getattr(part, "cache_control", None) for part in marked)

    @property
    def asked_choice(self) -> ToolChoice | None:
        if self.tool_choice is None:
            return None
        match self.tool_choice.type:
            case "any":
                return ToolChoice("required")
            case "tool":
                return ToolChoice("named", self.tool_choice.name)
            case kind:
                return ToolChoice(kind)

    @property
    def parallel(self) -> bool:
        return not (self.tool_choice and self.tool_choice.disable_parallel_tool_use)

    def asked_grammar(self, limits: Limits) -> Grammar | None:
        form = self.output_config.format if self.output_config else None
        return None if form is None else schema_grammar("output_config.format", form.definition, limits)


class MessagesRequest(CountRequest):
    unserved: ClassVar[dict[str, Harmless]] = {
        **CountRequest.unserved,
        "service_tier": ("auto", "standard_only"),
        "inference_geo": (),
    }

    max_tokens: PositiveCount
    stop_sequences: list[NonEmpty] | None = None
    stream: bool | None = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    metadata: Metadata | None = None
