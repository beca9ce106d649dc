"""Teacher forcing: the plain model is fed what an engine has answered, and says whether it would have said the same.

No second run can part from the first here, so it also sees what comes after a near tie, wrong positions and doubled
tokens: every received token must score within rounding of the best.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from llguidance import LLMatcher

from chorus.engine.sampling import Draw, Mask, preferences
from chorus.messages.engine import Finish, Request
from chorus.platform.storage.disk import nameless_file
from chorus.text.grammar.child import Masks
from chorus.text.grammar.forms import llguidance_form
from chorus.text.grammar.vocabulary import Vocabularies
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
        self.model: nn.Module = build_config(config, seed)
        self._grammars: Grammars | None = None

    @classmethod
    def of_folder(cls, path: Path) -> Teacher:
        """A model as it lies on disk, computed in float32, with its grammars."""
        from mlx_lm.utils import dequantize_model, load_model

        teacher = cls.__new__(cls)
        model, config = load_model(path)
        # Scales first, so that dequantizing loses nothing.
        model.set_dtype(mx.float32)
        teacher.model = dequantize_model(model) if "quantization" in config else model
        teacher._grammars = Grammars(path, config["vocab_size"])
        return teacher

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
        masks = self._masks(request, output)
        draws = [
            Draw(request.sampling, len(request.prompt) + i, request.prompt, output[:i], masks[i] if masks else None)
            for i in places
        ]
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

    def _masks(self, request: Request, output: Sequence[int]) -> list[Mask] | None:
        if request.grammar is None or self._grammars is None:
            return None
        return list(self._grammars.masks(request, output))


class Grammars:
    """What the grammars of requests allow, computed as the engine's own processes do."""

    def __init__(self, path: Path, vocabulary: int) -> None:
        self._vocabularies = Vocabularies(path, vocabulary, trust_remote_code=False)
        self._words = -(-vocabulary // 32)

    def masks(self, request: Request, output: Iterable[int]) -> Iterator[Mask]:
        """What may come first, and what after each token; raises GrammarError at a token that it does not accept."""
        grammar = request.grammar
        assert grammar is not None
        vocabulary = self._vocabularies.ending_with(request.stop_tokens)
        matcher = LLMatcher(vocabulary, llguidance_form(grammar.kind, grammar.source, grammar.parts), log_level=0)
        file = nameless_file(4 * self._words)
        try:
            masks = Masks(matcher, file, vocabulary.vocab_size, request.stop_tokens)
            seen = np.frombuffer(mmap.mmap(file, 4 * self._words, prot=mmap.PROT_READ), dtype=np.int32)
            masks.fill()
            yield seen.copy()
            for token in output:
                masks.take(token)
                yield seen.copy()
        finally:
            os.close(file)


def _of_drawn(scores: mx.array, answer: Answer) -> mx.array:
    """The score of every token of the answer, and of the best one that ends it where one did."""
    drawn = mx.array([*answer.tokens, *[0] * (len(scores) - len(answer.tokens))])
    found = mx.take_along_axis(scores, drawn[:, None], axis=-1)[:, 0]
    if answer.finish is Finish.STOP:
        found[-1] = mx.max(scores[-1][mx.array(sorted(answer.request.stop_tokens))])
    return found
