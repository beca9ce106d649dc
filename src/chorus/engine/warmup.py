"""Runs every shape class once before the engine is ready, so that no client pays for compiled kernels or cold pages."""

from __future__ import annotations

import mlx.core as mx

from chorus.engine.leader import Leader
from chorus.engine.requests import Request, Sampling
from chorus.platform import device

TOKEN = 1
NEW_TOKENS = 3
SHORT_PROMPT = 3
CPU_PROMPT = 16
"""Nothing is compiled on a CPU: a small chunk touches all weights as well as a large one does."""


def warm_up(leader: Leader) -> None:
    limits = leader.scheduler.limits
    chunk = CPU_PROMPT if device.backend() == "cpu" else limits.prefill_chunk + SHORT_PROMPT
    room = limits.context - NEW_TOKENS
    if room < 1:
        return
    _run(leader, [min(chunk, room)])
    _run(leader, [min(SHORT_PROMPT + row, room) for row in range(min(4, limits.max_batch))])
    mx.clear_cache()


def _run(leader: Leader, prompt_sizes: list[int]) -> None:
    for row, size in enumerate(prompt_sizes):
        sampling = Sampling(temperature=1.0, top_p=0.9) if row % 2 else Sampling()
        leader.scheduler.submit(Request(f"0:warm-up-{row}", (TOKEN,) * size, NEW_TOKENS, sampling=sampling))
    while not leader.idle:
        leader.turn()
