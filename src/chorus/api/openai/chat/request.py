"""The body of a chat request."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from chorus.api.fields import (
    Harmless,
    Metadata,
    Name,
    NonEmpty,
    OtherPart,
    StrictModel,
    Undescribed,
    by_json_type,
    by_kind,
    refused,
)
from chorus.api.openai.sampling import AnswerTokens, SamplingFields, schema_grammar
from chorus.config.sections import Limits
from chorus.messages.grammar import Grammar
from chorus.serving.requests import grammar as grammars
from chorus.serving.requests.tools import Tool, ToolChoice

FunctionName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:-]+$")]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class TextPart(StrictModel):
    type: Literal["text"]
    text: str


Part = Annotated[Annotated[TextPart, Tag("<text>")] | Annotated[OtherPart, Tag("<other>")], by_kind("<text>", "text")]
Content = Annotated[Annotated[str, Tag("<string>")] | Annotated[list[Part], Tag("<list>")], Discriminator(by_json_type)]


class FunctionCall(StrictModel):
    name: NonEmpty
    arguments: str


class ToolCall(StrictModel):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None
    """Only streams have it, and clients that join them send it back."""


class _Message(StrictModel):
    content: Content
    name: Name | None = None

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


class AssistantMessage(StrictModel):
    """An earlier answer, often sent back as the client library dumped it, with its empty fields."""

    role: Literal["assistant"]
    content: Content | None = None
    name: Name | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same, in the words of mlx-lm and others."""
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and not self.tool_calls and not self.thoughts:
            raise refused("refused", "content", "an assistant message needs content or tool_calls")
        return self

    @model_validator(mode="after")
    def _thinks_one_thing(self) -> AssistantMessage:
        if self.reasoning and self.reasoning_content and self.reasoning != self.reasoning_content:
            raise refused("refused", "reasoning", "not the same as reasoning_content; send one of them")
        return self

    @property
    def thoughts(self) -> str | None:
        return self.reasoning_content or self.reasoning

    @property
    def text(self) -> str:
        return "" if self.content is None else joined(self.content)


def _role(value: Any) -> str:
    role = value.get("role") if isinstance(value, dict) else None
    tags = {
        "system": "<system>",
        "developer": "<system>",
        "user": "<user>",
        "assistant": "<assistant>",
        "tool": "<tool>",
    }
    return tags.get(role, "<unknown>") if isinstance(role, str) else "<unknown>"


class UnknownMessage(Undescribed):
    role: Literal["system", "developer", "user", "assistant", "tool"]


Message = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")]
    | Annotated[UnknownMessage, Tag("<unknown>")],
    Discriminator(_role),
]


class FunctionDefinition(StrictModel):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(StrictModel):
    type: Literal["function"]
    function: FunctionDefinition

    def as_tool(self) -> Tool:
        function = self.function
        return Tool(function.name, function.description, function.parameters, bool(function.strict))


class NamedFunction(StrictModel):
    name: NonEmpty


class NamedTool(StrictModel):
    type: Literal["function"]
    function: NamedFunction


def _object_or_text(value: Any) -> str:
    return "<object>" if isinstance(value, dict) else "<string>"


ToolChoiceField = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<string>")] | Annotated[NamedTool, Tag("<object>")],
    Discriminator(_object_or_text),
]


class JsonSchemaFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=True)

    name: str | None = Field(default=None, max_length=128)
    description: str | None = None
    # The name is taken by pydantic.
    definition: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    """A schema is enforced either way: there is no answer that it does not allow."""


class ResponseFormat(StrictModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise refused("missing", "json_schema", "it holds the schema")
        if self.type != "json_schema" and self.json_schema is not None:
            raise refused("refused", "json_schema", "allowed only with the type json_schema")
        return self


class RoleMapping(StrictModel):
    """Texts to put before each message, instead of the model's template."""

    system_prompt: str = ""
    system: str = ""
    user: str = ""
    assistant: str = ""
    tool: str = ""
    stop: str = "\n"


class ReasoningField(StrictModel):
    """The same wish as reasoning_effort, in the words of other servers."""

    effort: Effort | None = None
    enabled: bool | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """No summary is made: reasoning_content holds all that the model thought."""


class ChatRequest(SamplingFields):
    unserved: ClassVar[dict[str, Harmless]] = {
        **SamplingFields.unserved,
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "verbosity": ("medium",),
        "web_search_options": (),
        "service_tier": ("auto", "default"),
    }

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: AnswerTokens | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    reasoning: ReasoningField | None = None
    enable_thinking: bool | None = None
    """The same wish as reasoning.enabled: what templates call it."""
    chat_template_kwargs: dict[str, Any] | None = None
    role_mapping: RoleMapping | None = None
    # Notes of the client's own. They change nothing in the answer, so they are taken and not kept.
    metadata: Metadata | None = None
    store: bool | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Name | None = None

    def grammar_fields(self) -> list[str]:
        formatted = self.response_format is not None and self.response_format.type != "text"
        return (["response_format"] if formatted else []) + super().grammar_fields()

    def _grammar_in(self, name: str, limits: Limits) -> Grammar | None:
        if name != "response_format" or self.response_format is None:
            return super()._grammar_in(name, limits)
        if self.response_format.json_schema is None:
            return grammars.json_object()
        return schema_grammar(name, self.response_format.json_schema.definition, limits)

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def asked_effort(self) -> str | None:
        return self.reasoning_effort or (self.reasoning.effort if self.reasoning else None)

    @property
    def asked_thinking(self) -> bool | None:
        asked = self.reasoning.enabled if self.reasoning else None
        return self.enable_thinking if asked is None else asked

    @property
    def asked_mapping(self) -> dict[str, str] | None:
        """An empty one asks for nothing."""
        mapping = self.role_mapping
        return mapping.model_dump() if mapping and mapping.model_fields_set else None

    @property
    def asked_choice(self) -> ToolChoice | None:
        if isinstance(self.tool_choice, NamedTool):
            return ToolChoice("named", self.tool_choice.function.name)
        return None if self.tool_choice is None else ToolChoice(self.tool_choice)


def joined(content: str | list[TextPart] | list[Any]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
