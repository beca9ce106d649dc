"""The fields that OpenAI's chat and completions share, with the extras that other servers have made common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from chorus.api.errors import invalid
from chorus.api.fields import (
    Name,
    NonEmpty,
    PositiveCount,
    StrictModel,
    TextOrTexts,
    as_tuple,
    refused,
)
from chorus.api.sharing import SharingFields
from chorus.config.sampling import SamplingOptions
from chorus.config.sections import Limits
from chorus.messages.grammar import Grammar, GrammarError
from chorus.serving import grammar as grammars
from chorus.serving import measure


class StreamOptions(StrictModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Padding against observers of encrypted traffic; accepted for OpenAI's clients, never added."""


class SamplingFields(SamplingOptions, SharingFields):
    model: Name | None = None
    max_tokens: PositiveCount | None = None
    # Called so by the servers that have it.
    repetition_context: PositiveCount | None = Field(default=None, alias="repetition_context_size")
    # Other servers turn it off by -1.
    top_k: Annotated[int | None, Field(ge=-1, lt=2**31), AfterValidator(lambda count: count and max(count, 0))] = None
    stop: TextOrTexts | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, lt=2**31)
    user: Name | None = None
    grammar: NonEmpty | None = None
    guided_json: dict[str, Any] | NonEmpty | None = None
    guided_regex: NonEmpty | None = None
    guided_choice: Annotated[list[NonEmpty], Field(min_length=1, max_length=1000)] | None = None
    guided_grammar: NonEmpty | None = None
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise refused("refused", "stream_options", "allowed only with stream: true")
        return self

    @model_validator(mode="after")
    def _one_grammar(self) -> SamplingFields:
        given = self.grammar_fields()
        if len(given) > 1:
            raise refused("refused", given[1], f"cannot be combined with {given[0]}")
        return self

    def grammar_fields(self) -> list[str]:
        names = ("grammar", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
        return [name for name in names if getattr(self, name) is not None]

    def asked_grammar(self, limits: Limits) -> tuple[Grammar | None, str]:
        """With the name of the field it came from."""
        (name, *_) = self.grammar_fields() or [""]
        try:
            grammar = self._grammar_in(name, limits)
        except GrammarError as error:
            raise invalid(f"{name}: {error}.", name, "invalid_grammar") from None
        return (grammar and grammars.sent_as(grammar, name)), name

    def _grammar_in(self, name: str, limits: Limits) -> Grammar | None:
        match name:
            case "grammar" | "guided_grammar":
                measure.grammar(name, getattr(self, name), limits)
                return grammars.rules(getattr(self, name))
            case "guided_regex":
                measure.grammar(name, self.guided_regex or "", limits)
                return grammars.regex(self.guided_regex or "")
            case "guided_choice":
                measure.grammar(name, "".join(self.guided_choice or []), limits)
                return grammars.one_of(self.guided_choice or [])
            case "guided_json":
                return schema_grammar(name, _schema(name, self.guided_json, limits), limits)
            case _:
                return None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return as_tuple(self.stop)

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def schema_grammar(field: str, schema: dict[str, Any], limits: Limits) -> Grammar:
    measure.schema(field, schema, limits)
    return grammars.json_schema(schema)


def _schema(field: str, value: dict[str, Any] | str | None, limits: Limits) -> dict[str, Any]:
    if isinstance(value, str):
        measure.grammar(field, value, limits)
        try:
            value = measure.decoded(field, value, limits.max_nesting)
        except measure.TooMuch:
            raise
        except ValueError:
            raise GrammarError("it is not valid JSON") from None
    if not isinstance(value, dict):
        raise GrammarError("a JSON schema is an object")
    return value
