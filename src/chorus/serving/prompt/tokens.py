"""A prompt as the engine is sent it: tokens, and the places among them where other requests may part from it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from chorus.serving.prompt.branches import Branches
from chorus.serving.prompt.remembered import Opened
from chorus.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    tokens: tuple[int, ...]
    cuts: tuple[int, ...] = ()
    """Numbers of tokens that are the same whatever follows them, in order."""
    needed_cuts: tuple[int, ...] = ()
    """Those of them where the next turn of the conversation parts from the prompt."""
    opened: Opened | None = None
    """What its answer is remembered under; None: it is not."""


def cut_prompt(text: str, places: Branches, tokenizer: Tokenizer) -> Prompt:
    """Encoded in parts, so that places among characters are known among tokens. A place between seams goes back to the
    last one; where there is none, nothing is known to stay the same.
    """
    seams = {place: tokenizer.seam_before(text, place) for place in places.cuts}
    starts = sorted({start for start in seams.values() if start > 0})
    parts = tokenizer.encode_parts([text[start:end] for start, end in pairwise([0, *starts, len(text)])])
    # Up to and with the token that each part but the first begins with.
    cuts = {start: 1 + before for start, before in zip(starts, accumulate(map(len, parts)), strict=False)}
    needed = {cuts[seams[place]] for place in places.needed if seams[place] in cuts}
    return Prompt(tuple(chain.from_iterable(parts)), tuple(cuts.values()), tuple(sorted(needed)))
