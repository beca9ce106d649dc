"""The short form of the soak: 30 random conversations with small models of every kind, over one to three ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chorus.messages.engine import Finish, Request, Sampling
from tests.support.architectures import ARCHITECTURES
from tests.support.teacher import Answer, Teacher

ROOT = Path(__file__).parents[2]
SECONDS = 300.0


def test_answers_with_the_cache_are_those_of_the_plain_model() -> None:
    command = [sys.executable, "-m", "tests.soak_cache", "--in-all", "30", "--seed", "1", "--jobs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher(ARCHITECTURES["qwen2"])


def test_a_teacher_sees_one_wrong_token_and_a_wrong_position(teacher: Teacher) -> None:
    request = Request("1:1", (5, 6, 7, 8, 9), 12, sampling=Sampling(temperature=1.0, seed=3))
    tokens: list[int] = []
    while len(tokens) < request.max_tokens:
        tokens.append(_likeliest(teacher, request, tokens))
    right = Answer(request, tuple(tokens), Finish.LENGTH)
    wrong = Answer(request, (*tokens[:4], tokens[4] + 1, *tokens[5:]), Finish.LENGTH)
    early = Answer(Request("1:2", request.prompt[1:], 12, sampling=request.sampling), tuple(tokens), Finish.LENGTH)
    first, second, third = teacher.faults([right, wrong, early])
    assert first is None
    assert second
    assert second.startswith("token 4 of 12 scores")
    assert third


def _likeliest(teacher: Teacher, request: Request, tokens: list[int]) -> int:
    """The only next token that the teacher finds nothing wrong with."""
    candidates = [Answer(request, (*tokens, token), Finish.CANCELLED) for token in range(3, 320)]
    return next(a.tokens[-1] for a, fault in zip(candidates, teacher.faults(candidates), strict=True) if fault is None)
