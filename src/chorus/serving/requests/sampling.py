"""How an answer is sampled: the client's word, else the server's default, else the protocol's."""

from __future__ import annotations

import secrets

from pydantic import BaseModel

from chorus.config.sampling import DefaultSampling, given
from chorus.messages.engine import Sampling

XTC_THRESHOLD = 0.1
"""mlx-lm's; at 0 every token would count as likely, and the least likely of all be taken."""

PROTOCOL = {"temperature": 1.0, "xtc_threshold": XTC_THRESHOLD}
"""What holds where nobody says it: OpenAI's and Anthropic's temperature. All else is off."""


def choose_sampling(body: BaseModel, defaults: DefaultSampling) -> Sampling:
    """What a request's body says goes over the server's defaults.

    A top_p of 0 beside a temperature is off, as in mlx-lm. Alone it is the likeliest token: OpenAI takes it so, and
    mlx-lm answers so, whose temperature is 0 until somebody says another.
    """
    asked = given(body)
    if asked.get("top_p") == 0:
        asked = {"temperature": 0.0, **asked, "top_p": 1.0}
    chosen = {**PROTOCOL, **given(defaults), **asked}
    return Sampling(**{**chosen, "seed": chosen["seed"] % 2**64 if "seed" in chosen else draw_seed()})


def draw_seed() -> int:
    """63 bits, so that every language's signed integers can hold it."""
    return secrets.randbits(63)
