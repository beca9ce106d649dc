"""The body of a Responses request."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from chorus.api.fields import (
    Harmless,
    Metadata,
    Name,
    NonEmpty,
    OtherPart,
    PositiveCount,
    StrictModel,
    Undescribed,
    by_json_type,
    by_kind,
    refused,
)
from chorus.api.openai.chat.request import Effort, FunctionName
from chorus.api.openai.sampling import schema_grammar
from chorus.api.sharing import SharingFields
from chorus.config.sampling import Penalty, Seed, Temperature, TopP
from chorus.config.sections import Limits
from chorus.messages.grammar import Grammar
from chorus.serving.requests import grammar as grammars
from chorus.serving.requests.tools import Tool, ToolChoice

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
Status = Literal["in_progress", "completed", "incomplete"]


class ResponsesTextPart(StrictModel):
    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str
    # What an answer carries and clients send back with it.
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


Part = Annotated[
    Annotated[ResponsesTextPart, Tag("<text>")] | Annotated[OtherPart, Tag("<other>")], by_kind("<text>", *_TEXT_PARTS)
]
Content = Annotated[Annotated[str, Tag("<string>")] | Annotated[list[Part], Tag("<list>")], Discriminator(by_json_type)]


class MessageItem(StrictModel):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallItem(StrictModel):
    type: Literal["function_call"]
    call_id: NonEmpty
    name: NonEmpty
    arguments: str
    id: str | None = None
    status: Status | None = None


class FunctionCallOutputItem(StrictModel):
    type: Literal["function_call_output"]
    call_id: NonEmpty
    output: Content
    id: str | None = None
    status: Status | None = None


class ReasoningItem(StrictModel):
    type: Literal["reasoning"]
    summary: list[ResponsesTextPart] = Field(default_factory=list)
    content: list[ResponsesTextPart] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: Status | None = None


class OtherItem(Undescribed):
    type: Any

    @model_validator(mode="after")
    def _refuse(self) -> OtherItem:
        raise PydanticCustomError("unsupported", "items of this type are not supported")


def _item_kind(value: Any) -> str:
    kind = value.get("type", "message") if isinstance(value, dict) else "message"
    known = ("message", "function_call", "function_call_output", "reasoning")
    return f"<{kind}>" if kind in known else "<other>"


Item = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionCallOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[OtherItem, Tag("<other>")],
    Discriminator(_item_kind),
]


class ResponsesFunctionTool(StrictModel):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def as_tool(self) -> Tool:
        return Tool(self.name, self.description, self.parameters, bool(self.strict))


class ResponsesOtherTool(Undescribed):
    type: str

    @model_validator(mode="after")
    def _refuse(self) -> ResponsesOtherTool:
        raise PydanticCustomError("unsupported", "only function tools are supported")


ToolField = Annotated[
    Annotated[ResponsesFunctionTool, Tag("<function>")] | Annotated[ResponsesOtherTool, Tag("<other>")],
    by_kind("<function>", "function"),
]


class ResponsesNamedTool(StrictModel):
    type: Literal["function"]
    name: NonEmpty


class AllowedTools(StrictModel):
    type: Literal["allowed_tools"]
    mode: Literal["none", "auto", "required"]
    tools: list[ResponsesNamedTool] = Field(min_length=1)


def _choice_kind(value: Any) -> str:
    if not isinstance(value, dict):
        return "<string>"
    return "<allowed>" if value.get("type") == "allowed_tools" else "<named>"


ToolChoiceField = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<string>")]
    | Annotated[ResponsesNamedTool, Tag("<named>")]
    | Annotated[AllowedTools, Tag("<allowed>")],
    Discriminator(_choice_kind),
]


class TextFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    # The name is taken by pydantic.
    definition: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> TextFormat:
        if self.type == "json_schema" and self.definition is None:
            raise refused("missing", "schema", "it is what the answer must look like")
        return self


class TextOptions(StrictModel):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(StrictModel):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """No summary is made: a reasoning item holds all that the model thought."""


class ResponsesStreamOptions(StrictModel):
    include_obfuscation: bool | None = None


Included = Literal["reasoning.encrypted_content", "message.output_text.logprobs"]


class ResponsesRequest(SharingFields):
    unserved: ClassVar[dict[str, Harmless]] = {
        "background": (False,),
        "conversation": (),
        "max_tool_calls": (),
        "prompt": (),
        "service_tier": ("auto", "default"),
        "context_management": (),
    }

    input: Annotated[
        Annotated[NonEmpty, Tag("<string>")] | Annotated[list[Item], Field(min_length=1), Tag("<list>")],
        Discriminator(by_json_type),
    ]
    model: Name | None = None
    instructions: str | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    max_output_tokens: PositiveCount | None = None
    temperature: Temperature = None
    top_p: TopP = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    seed: Seed = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[ToolField] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Included] | None = None
    truncation: Literal["disabled"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Notes of the client's own: given back, and otherwise of no effect.
    metadata: Metadata | None = None
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Name | None = None

    @property
    def wants_logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ()) or bool(self.top_logprobs)

    def asked_grammar(self, limits: Limits) -> Grammar | None:
        form = self.text.format if self.text else None
        if form is None or form.type == "text":
            return None
        if form.definition is None:
            return grammars.json_object()
        return schema_grammar("text.format", form.definition, limits)

    def offered_tools(self) -> list[Tool]:
        """Those that may be called: a choice of allowed tools leaves the others out."""
        tools = [tool.as_tool() for tool in self.tools or () if isinstance(tool, ResponsesFunctionTool)]
        if not isinstance(self.tool_choice, AllowedTools):
            return tools
        allowed = {tool.name for tool in self.tool_choice.tools}
        return [tool for tool in tools if tool.name in allowed]

    @property
    def asked_choice(self) -> ToolChoice | None:
        match self.tool_choice:
            case None:
                return None
            case ResponsesNamedTool(name=name):
                return ToolChoice("named", name)
            case AllowedTools(mode=mode):
                return ToolChoice(mode)
            case kind:
                return ToolChoice(kind)


def joined(content: str | list[Any]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
