"""How much room a plan must find on the nodes that are there, and whether others would be better."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from chorus.deploy.supervisor import TooLittleRoom

PAYS = 1.2
"""How many times faster a group must become to be planned anew by itself."""


class Fit(Enum):
    """How much room a plan must find."""

    AS_ASKED = "as asked"
    """What was asked for holds; whether one machine alone has room, its own rank finds out."""
    WHOLE = "whole"
    """The model, with the context that it was to have."""
    LESS = "less"
    """The model; a smaller context will do."""


class DoesNotHold(TooLittleRoom):
    """These nodes have no room for the model: says what is missing."""


@dataclass(frozen=True)
class Offer:
    """What planning anew would bring, in predicted tokens a second of one stream."""

    now: float
    """0: those that are used now have no room for the context that was asked for."""
    then: float

    @property
    def pays(self) -> bool:
        return self.then >= PAYS * self.now

    def __str__(self) -> str:
        today = f"{self.now:.3g} now" if self.now else "now the context that was asked for has no room"
        return f"about {self.then:.3g} tokens/s with it, {today}"
