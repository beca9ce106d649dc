"""The fields that OpenAI's chat and completions share, with the extras that other servers have made common.

Those of mlx-lm's server mean what they mean there: what is off there by a value of its own is off here.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from chorus.api.errors import invalid
from chorus.api.fields import (
    Harmless,
    KeepAlive,
    Name,
    NonEmpty,
    PositiveCount,
    StrictModel,
    TextOrTexts,
    as_tuple,
    refused,
)
from chorus.api.sharing import SharingFields
from chorus.config.sampling import SamplingOptions, Share
from chorus.config.sections import Limits
from chorus.messages.engine import MAX_TOP_LOGPROBS
from chorus.messages.grammar import Grammar, GrammarError
from chorus.serving.requests import grammar as grammars
from chorus.serving.requests import measure

ALL_TOKENS = 2**31 - 1


def _some_answer(count: Any) -> Any:
    """Elsewhere 0 may mean no answer, or one without a limit, and so may -1."""
    if isinstance(count, int) and not isinstance(count, bool) and count < 1:
        raise PydanticCustomError(
            "refused", "expected 1 or more; leave it out for an answer as long as the context allows"
        )
    return count


AnswerTokens = Annotated[PositiveCount, BeforeValidator(_some_answer)]

ContextSize = Annotated[
    int | None, Field(ge=0, lt=2**31), AfterValidator(lambda size: ALL_TOKENS if size == 0 else size)
]
"""How many of the last tokens, of prompt and answer, a penalty looks at. 0 is all of them, as in mlx-lm."""

LogprobsField = Annotated[
    Annotated[bool, Tag("<flag>")] | Annotated[int, Field(ge=-1, le=MAX_TOP_LOGPROBS), Tag("<count>")],
    Discriminator(lambda value: "<flag>" if isinstance(value, bool) else "<count>"),
]
"""OpenAI's chat has a flag here and its completions the number of candidates; -1 is off."""


class StreamOptions(StrictModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Padding against observers of encrypted traffic; accepted for OpenAI's clients, never added."""


class SamplingFields(SamplingOptions, SharingFields):
    unserved: ClassVar[dict[str, Harmless]] = {"adapters": (), "draft_model": ("default_model",)}
    instead: ClassVar[dict[str, str]] = {
        "adapters": "fuse the adapter into the model (mlx_lm.fuse) and serve that folder",
        "draft_model": "no draft model is used; leave it out",
    }

    model: Name | None = None
    keep_alive: KeepAlive | None = None
    max_tokens: AnswerTokens | None = None
    # Called so by the servers that have them.
    repetition_context: ContextSize = Field(default=None, alias="repetition_context_size")
    presence_context: ContextSize = Field(default=None, alias="presence_context_size")
    frequency_context: ContextSize = Field(default=None, alias="frequency_context_size")
    # Some turn it off by 0.
    repetition_penalty: Annotated[
        float | None, Field(ge=0, le=10), AfterValidator(lambda penalty: 1.0 if penalty == 0 else penalty)
    ] = None
    # What 0 means depends on the temperature: see choose_sampling.
    top_p: Share = None
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
    logprobs: LogprobsField | None = None
    top_logprobs: int | None = Field(default=None, ge=-1, le=MAX_TOP_LOGPROBS)
    # How far ahead a draft would look; it changes nothing in an answer.
    num_draft_tokens: int | None = Field(default=None, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _candidates_need_logprobs(self) -> SamplingFields:
        if self.logprobs is False and (self.top_logprobs or 0) > 0:
            raise refused("refused", "top_logprobs", "allowed only with logprobs: true")
        return self

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
    def asked_logprobs(self) -> int | None:
        """How many candidates to report with each token's own log probability; None: not even that."""
        own = -1 if self.logprobs is None or self.logprobs is False else 0 if self.logprobs is True else self.logprobs
        most = max(own, self.top_logprobs or -1)
        return None if most < 0 else most

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
