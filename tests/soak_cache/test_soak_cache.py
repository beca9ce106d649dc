"""The short form of the soak: 30 random conversations with small models of every kind, over one to three ranks."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from chorus.engine.sampling import Draw, Sampler
from chorus.messages.engine import Finish, Request, Sampling
from tests.support.architectures import ARCHITECTURES, single_cache
from tests.support.teacher import Answer, Teacher

ROOT = Path(__file__).parents[2]
SECONDS = 300.0


def test_answers_with_the_cache_are_those_of_the_plain_model() -> None:
    command = [sys.executable, "-m", "tests.soak_cache", "--in-all", "30", "--seed", "1", "--jobs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_teacher_sees_a_wrong_token_a_wrong_position_and_a_wrong_end() -> None:
    teacher = Teacher(ARCHITECTURES["qwen2"])
    request = Request("1:1", (5, 6, 7, 8, 9), 6, frozenset({300}), Sampling(temperature=1.0, seed=3))
    tokens: list[int] = []
    while len(tokens) < request.max_tokens:
        read = (*request.prompt, *tokens)
        logits = teacher.model(mx.array([read]), cache=single_cache(teacher.model))[:, -1]
        tokens.append(int(Sampler().sample(logits, [Draw(request.sampling, len(read))]).item()))
    right = Answer(request, tuple(tokens), Finish.LENGTH)
    again = replace(right, request=replace(request, answered=tuple(tokens[:2])), tokens=tuple(tokens[2:]))
    wrong = replace(right, tokens=(*tokens[:3], tokens[3] ^ 1, *tokens[4:]))
    moved = replace(right, request=replace(request, prompt=request.prompt[1:]))
    ended = replace(right, tokens=tuple(tokens[:3]), finish=Finish.STOP)
    faults = teacher.faults([right, again, wrong, moved, ended])
    assert faults[:2] == [None, None]
    assert [str(fault).partition(" scores ")[0] for fault in faults[2:]] == [
        "token 3 of 6",
        "token 0 of 6",
        "token 3 of 3",
    ]
