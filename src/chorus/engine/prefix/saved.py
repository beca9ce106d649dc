"""A file that every rank has, or is about to have: its part of one run of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Tokens = tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Saved:
    """A file: tokens from `start` on, or, without tokens, what windows and recurrent states were behind `before`."""

    scope: str
    start: int
    tokens: Tokens
    before: Saved | None
    key: str

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    def path(self) -> Tokens:
        """All tokens up to its end."""
        parts, upto, file = [self.tokens], self.start, self.before
        while file is not None and upto:
            parts.append(file.tokens[: max(0, upto - file.start)])
            upto, file = min(upto, file.start), file.before
        return tuple(token for part in reversed(parts) for token in part)


def key_of(scope: str, path: Sequence[int], start: int, state: bool) -> str:
    """The name of a file: nobody who has not asked the same can make it, and it says nothing of what was asked."""
    digest = hashlib.blake2b(f"{scope}\n{'state' if state else start}\n".encode(), digest_size=20)
    digest.update(np.asarray(path, dtype=np.uint32).tobytes())
    return digest.hexdigest()
