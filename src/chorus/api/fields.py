"""What all request bodies share: strict types, unknown fields refused by name, and unions told apart by JSON type.

Union tags are written <so>: they show up in pydantic's error locations, and errors.field_path leaves them out.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, LiteralString

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, ValidationError

from chorus.config.served import seconds_from_text

NonEmpty = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(max_length=1024)]
# As OpenAI bounds them.
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
PositiveCount = Annotated[int, Field(ge=1, lt=2**31)]

KeepAlive = Annotated[
    float,
    BeforeValidator(seconds_from_text, json_schema_input_type=float | str),
    Field(
        allow_inf_nan=False,
        description="How long the model stays loaded after this request, as Ollama's clients "
        "say it: seconds, or 5m; 0 unloads it, below 0 it stays.",
    ),
]
# What a protocol field may say and mean nothing more than its absence does.
Harmless = tuple[Any, ...]


class StrictModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class RequestBody(StrictModel):
    """Extra fields are let in only so that those of the protocol can be told from the unknown ones."""

    model_config = ConfigDict(extra="allow")

    # Fields of the protocol that are not served, each with the values that ask for nothing.
    unserved: ClassVar[dict[str, Harmless]] = {}
    # What to do instead, where it is more than to leave the field out.
    instead: ClassVar[dict[str, str]] = {}

    @property
    def asked_model(self) -> str | None:
        """Every protocol calls it `model`."""
        return getattr(self, "model", None)

    @model_validator(mode="after")
    def _refuse_what_is_not_served(self) -> RequestBody:
        for name, value in (self.model_extra or {}).items():
            if name not in self.unserved:
                raise refused("extra_forbidden", name, "unknown")
            if value is not None and not _among(value, self.unserved[name]):
                raise refused("unsupported", name, f"not supported; {self.instead.get(name, 'leave it out')}")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The description says what the validator above does."""
        schema = handler.resolve_ref_schema(handler(core))
        schema["additionalProperties"] = False
        for name, harmless in cls.unserved.items():
            schema["properties"][name] = {"enum": [None, *harmless], "description": "Not supported."}
        return schema


class Undescribed(BaseModel):
    """A member of a union that exists to refuse: the description does not offer it."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"not": {}}


def by_json_type(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<string>"


TextOrTexts = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[NonEmpty], Tag("<list>")], Discriminator(by_json_type)
]
"""An empty text says as little as none."""


def as_tuple(value: str | list[str] | None) -> tuple[str, ...]:
    if not value:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def refused(kind: LiteralString, field: str, message: str) -> ValidationError:
    """A validator of a whole model cannot name a field by itself; this error can."""
    error = PydanticCustomError(kind, "{message}", {"message": message})
    return ValidationError.from_exception_data("request", [InitErrorDetails(type=error, loc=(field,), input=None)])


def not_text(kind: str) -> PydanticCustomError:
    return PydanticCustomError(
        "unsupported", "{kind} parts are not supported, the served model reads text only", {"kind": kind}
    )


class OtherPart(Undescribed):
    """Anything that is not text; the served model reads text only."""

    type: str

    @model_validator(mode="after")
    def _refuse(self) -> OtherPart:
        raise not_text(self.type)


def by_kind(tag: str, *known: str) -> Discriminator:
    """Tells objects of the known types, or of none, from others that exist to be refused."""

    def tag_of(value: Any) -> str:
        kind = value.get("type") if isinstance(value, dict) else None
        return "<other>" if isinstance(kind, str) and kind not in known else tag

    return Discriminator(tag_of)


def _among(value: Any, harmless: Harmless) -> bool:
    # Equality alone would let 0 pass for False.
    return any(type(value) is type(other) and value == other for other in harmless)
