"""How an answer is sampled: the client's word, else the server's default, else the protocol's."""

from __future__ import annotations

import secrets

from pydantic import BaseModel

from chorus.config.sampling import DefaultSampling, given
from chorus.messages.engine import Sampling

PROTOCOL = {"temperature": 1.0}
"""What OpenAI and Anthropic say where nobody does; all else is off."""


def choose_sampling(body: BaseModel, defaults: DefaultSampling) -> Sampling:
    """What a request's body says goes over the server's defaults."""
    chosen = {**PROTOCOL, **given(defaults), **given(body)}
    return Sampling(**{**chosen, "seed": chosen["seed"] % 2**64 if "seed" in chosen else draw_seed()})


def draw_seed() -> int:
    """63 bits, so that every language's signed integers can hold it."""
    return secrets.randbits(63)
