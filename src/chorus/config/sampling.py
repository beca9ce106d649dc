"""The options of sampling, each with its bounds: for a server's defaults, for requests, for LocalAI's models.

A field is called here as in `messages.engine.Sampling`, which says what holds where nobody gives it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from chorus.config.sections import Section

Temperature = Annotated[float | None, Field(ge=0, le=2)]
TopP = Annotated[float | None, Field(gt=0, le=1)]
TopK = Annotated[int | None, Field(ge=0, lt=2**31)]
Share = Annotated[float | None, Field(ge=0, le=1)]
Penalty = Annotated[float | None, Field(ge=-2, le=2)]
Seed = Annotated[int | None, Field(ge=-(2**63), lt=2**64)]
TokenId = Annotated[int, Field(ge=0, lt=2**32)]


class DefaultSampling(Section):
    """What a server may give to requests that do not say it themselves. None: it says nothing either."""

    temperature: Temperature = None
    """How bold the choice is; 0 always takes the likeliest token."""
    top_p: TopP = None
    """Only the likeliest tokens that together reach this share; 1 is off."""
    top_k: TopK = None
    """Only so many of the likeliest tokens; 0 is off."""
    min_p: Share = None
    """Only tokens that are at least this share as likely as the likeliest; 0 is off."""
    repetition_penalty: Annotated[float | None, Field(gt=0, le=10)] = None
    """Makes tokens that came lately less likely; 1 is off."""


class SamplingOptions(DefaultSampling):
    """What a request may ask for."""

    repetition_context: Annotated[int | None, Field(ge=1, lt=2**31)] = None
    """How many of the last tokens the repetition penalty looks at."""
    presence_penalty: Penalty = None
    """Taken once from tokens that the answer has already."""
    presence_context: Annotated[int | None, Field(ge=0, lt=2**31)] = None
    """How many of the last tokens, the prompt's too, count in place of the answer's."""
    frequency_penalty: Penalty = None
    """Taken from a token as often as the answer has it."""
    frequency_context: Annotated[int | None, Field(ge=0, lt=2**31)] = None
    """How many of the last tokens, the prompt's too, count in place of the answer's."""
    xtc_probability: Share = None
    """How often all likely tokens but the least likely of them are left out; 0 is off."""
    xtc_threshold: Annotated[float | None, Field(ge=0, le=0.5)] = None
    """How likely a token must be for that."""
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    """Added to the logits of these tokens."""
    seed: Seed = None
    """The same one gives the same answer; one is drawn where none is given."""


def given(options: BaseModel) -> dict[str, Any]:
    """What these options, or a request with some of them, do say."""
    said = {name: getattr(options, name, None) for name in SamplingOptions.model_fields}
    return {name: value for name, value in said.items() if value is not None}
