"""Teacher forcing: the plain model is fed what an engine has answered, and says whether it would have said the same.

No second run can part from the first here, so it also sees what comes after a near tie, wrong positions and doubled
tokens: every received token must score within rounding of the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from chorus.engine.sampling import Draw, preferences
from chorus.messages.engine import Finish, Request
from tests.support.architectures import Config, build_config, single_cache
from tests.support.margins import TOLERANCE

ROWS = 8
"""Answers that are looked at in one forward."""


@dataclass(frozen=True)
class Answer:
    request: Request
    tokens: tuple[int, ...]
    finish: Finish
    logprobs: tuple[float, ...] = ()
    """What the engine said of its tokens, where it was asked."""

    @property
    def output(self) -> tuple[int, ...]:
        return (*self.request.answered, *self.tokens)

    @property
    def read(self) -> tuple[int, ...]:
        """Prompt and output."""
        return (*self.request.prompt, *self.output)


class Teacher:
    """The whole model as upstream has it, with a fresh cache for every answer."""

    def __init__(self, config: Config, seed: int = 0) -> None:
        self.model = build_config(config, seed)

    def faults(self, answers: Sequence[Answer]) -> list[str | None]:
        """What is wrong with each answer; None: it is as the model would have given it."""
        found: dict[int, str | None] = {}
        by_length = sorted(range(len(answers)), key=lambda number: len(answers[number].read))
        for start in range(0, len(answers), ROWS):
            numbers = by_length[start : start + ROWS]
            together = self._faults([answers[number] for number in numbers])
            found.update(zip(numbers, together, strict=True))
        return [found[number] for number in range(len(answers))]

    def _faults(self, answers: list[Answer]) -> list[str | None]:
        # What stands behind an answer changes nothing before it, so that short ones may be filled up.
        longest = max(len(answer.read) for answer in answers)
        rows = [[*answer.read, *[0] * (longest - len(answer.read))] for answer in answers]
        logits = self.model(mx.array(rows), cache=single_cache(self.model)).astype(mx.float32)
        return [self._fault(answer, row) for answer, row in zip(answers, logits, strict=True)]

    def _fault(self, answer: Answer, logits: mx.array) -> str | None:
        request, output = answer.request, answer.output
        begin, stopped = len(request.answered), answer.finish is Finish.STOP
        places = range(begin, len(output) + stopped)
        if not places:
            return None
        first = len(request.prompt) - 1
        logits = logits[first + places.start : first + places.stop]
        draws = [Draw(request.sampling, len(request.prompt) + i, request.prompt, output[:i]) for i in places]
        scores = preferences(logits, draws)
        behind = mx.max(scores, axis=-1) - _of_drawn(scores, answer)
        own = _of_drawn(logits - mx.logsumexp(logits, axis=-1, keepdims=True), answer)
        for place, gap in zip(places, behind.tolist(), strict=True):
            # Not a number is wrong too.
            if not gap <= TOLERANCE:
                return f"token {place} of {len(output)} scores {gap:.3g} less than the best"
        for place, (told, expected) in enumerate(zip(answer.logprobs, own.tolist(), strict=False), begin):
            if not abs(told - expected) <= TOLERANCE:
                return f"token {place} of {len(output)} has log probability {expected:.5f}, told was {told:.5f}"
        return None


def _of_drawn(scores: mx.array, answer: Answer) -> mx.array:
    """The score of every token of the answer, and of the best one that ends it where one did."""
    drawn = mx.array([*answer.tokens, *[0] * (len(scores) - len(answer.tokens))])
    found = mx.take_along_axis(scores, drawn[:, None], axis=-1)[:, 0]
    if answer.finish is Finish.STOP:
        found[-1] = mx.max(scores[-1][mx.array(sorted(answer.request.stop_tokens))])
    return found
