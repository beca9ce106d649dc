"""A place in a group that was never formed: enough to divide a model, not to run it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Imagined:
    place: int
    ranks: int

    def rank(self) -> int:
        return self.place

    def size(self) -> int:
        return self.ranks
