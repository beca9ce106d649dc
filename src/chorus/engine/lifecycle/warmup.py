"""Runs every shape class once before the engine is ready, so that no client pays for compiled kernels or cold pages.

What depends on how fast the stages are, each beside the other, is tried out here too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx

from chorus.engine.leader import Leader
from chorus.engine.scheduling.chunks import DECODES, LEAST, ChunkLimits, StepCosts
from chorus.messages.engine import Request, Sampling
from chorus.platform import most_threads, rank_threads, use_threads
from chorus.platform.accelerator import device
from chorus.platform.cpu import blas, trials
from chorus.platform.cpu.beside import FrontEndWork

TOKEN = 1
NEW_TOKENS = 3
SHORT_PROMPT = 3
CPU_PROMPT = 16
"""Nothing is compiled on a CPU: a small chunk touches all weights as well as a large one does."""

TRIED_NEXT = 4
"""How many times larger each chunk is that is tried; those between are judged by both."""
TRIED_SECONDS = 0.5
"""What is expected to take longer is not tried."""
CHUNK_SHARE = 16
"""A chunk may take one part in so many of the memory that weights leave."""

USUAL = (Sampling(), Sampling(temperature=1.0, top_p=0.9))
"""How tokens are drawn while warming up, row by row in turn."""
APART, BESIDE = 40, 16
"""A prompt that is so long is not read in step with a short one, and so many new tokens later both decode: rows of
unequal lengths are written by kernels of their own."""
COMPILED = (
    Sampling(temperature=1.0),
    Sampling(temperature=1.0, top_p=0.9),
    Sampling(temperature=1.0, min_p=0.05),
    Sampling(temperature=1.0, frequency_penalty=0.5, presence_penalty=0.5, repetition_penalty=1.1),
)
"""Ways to draw of which each has kernels of its own on a GPU: compiled under streams, they would hold up all of them
for seconds."""

LANE_GAIN = 0.95
"""Several lanes must take at most this part of the time of one: the noise of a short trial decides nothing."""

THREAD_ROWS = 4
THREAD_ROUNDS = 5
THREAD_SECONDS = 0.5
"""No further round of a trial begins after these."""
LONG_SECONDS = 0.3
"""A model that takes so long for one stream's few tokens is tried with one stream alone."""

log = logging.getLogger("chorus.engine")


def warm_up(leader: Leader) -> None:
    limits = leader.scheduler.limits
    chunk = CPU_PROMPT if device.backend() == "cpu" else (limits.prefill_chunk or limits.chunks.usual) + SHORT_PROMPT
    room = limits.context - NEW_TOKENS
    if room < 1:
        return
    _run(leader, [min(chunk, room)])
    _run(leader, [min(SHORT_PROMPT + row, room) for row in range(min(4, limits.max_batch))])
    if device.backend() != "cpu":
        if limits.context >= APART + BESIDE:
            _run(leader, [SHORT_PROMPT, APART][: limits.max_batch], new_tokens=BESIDE)
        _compile_sampling(leader, min(SHORT_PROMPT, room))
    mx.clear_cache()


def measure_chunks(leader: Leader, memory: int) -> ChunkLimits:
    """See what larger and larger chunks take, so that the first prompts beside streams are cut well. None is larger
    later than those for which there was time and, of so many bytes that are left, memory.
    """
    scheduler, limits = leader.scheduler, leader.scheduler.limits
    if limits.context < SHORT_PROMPT + DECODES:
        return limits.chunks
    # What kernels took to compile says nothing of the next time.
    scheduler.costs = StepCosts()
    times = 1 if device.backend() == "cpu" else 2
    _run(leader, [SHORT_PROMPT], new_tokens=DECODES)
    size, taken = LEAST, 0
    while (
        size <= min(limits.chunks.most, limits.context - NEW_TOKENS)
        and (scheduler.costs.chunk(size) or 0.0) <= TRIED_SECONDS
        and taken * TRIED_NEXT <= memory / CHUNK_SHARE
    ):
        scheduler.limits = replace(limits, prefill_chunk=size)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        for _ in range(times):
            _run(leader, [size], new_tokens=1)
        size, taken = size * TRIED_NEXT, mx.get_peak_memory() - before
    scheduler.limits = limits
    mx.clear_cache()
    seen = scheduler.costs
    told = ", ".join(f"{tokens} in {1000 * seconds:.0f} ms" for tokens, seconds in seen.points)
    log.info("prompt tokens in one forward: %s; a decode in %.0f ms", told, 1000 * seen.decode)
    return replace(limits.chunks, most=max(limits.chunks.usual, min(limits.chunks.most, size // TRIED_NEXT)))


def choose_threads(leader: Leader) -> int:
    """Give the BLAS as many threads as decode a few tokens fastest, of one stream and of several, beside work like the
    front end's: its threads each do their part of a product, and the last to come is waited for.
    """
    usual, most = rank_threads(), most_threads()
    limits = leader.scheduler.limits
    if most <= usual or blas.get_threads() is None or limits.context < SHORT_PROMPT + NEW_TOKENS:
        return usual
    with FrontEndWork() as front_end:

        def one(threads: int) -> None:
            blas.set_threads(threads)
            _run(leader, [SHORT_PROMPT], told=front_end.tell)

        def several(threads: int) -> None:
            _run(leader, [SHORT_PROMPT] * min(THREAD_ROWS, limits.max_batch), told=front_end.tell)

        started = time.monotonic()
        one(usual)
        long = time.monotonic() - started > LONG_SECONDS
        numbers = trials.candidates(most)
        seconds = trials.medians([one] if long else [one, several], numbers, THREAD_ROUNDS, THREAD_SECONDS)
    chosen = trials.choose(seconds, usual)
    blas.set_threads(chosen)
    use_threads(chosen)
    log.info("the BLAS has %d of %d threads (tried %s)", chosen, most, trials.told(seconds, numbers))
    return chosen


def choose_lanes(leader: Leader, stages: int) -> int:
    """All streams in one batch, or one batch per stage, in turn: whichever decodes a few tokens faster here.

    Stages of equal length gain by lanes, whose waiting they fill; one long stage loses by them, since it then computes
    every layer once per lane.
    """
    limits, seconds = leader.scheduler.limits, {}
    rows = min(2 * stages, limits.max_batch)
    if rows < 2 or limits.context < SHORT_PROMPT + NEW_TOKENS:
        return 1
    for lanes in (1, stages):
        leader.scheduler.limits = replace(limits, lanes=lanes)
        started = time.monotonic()
        _run(leader, [SHORT_PROMPT] * rows)
        seconds[lanes] = time.monotonic() - started
    chosen = stages if seconds[stages] <= LANE_GAIN * seconds[1] else 1
    tried = ", ".join(f"{lanes} in {1000 * spent:.0f} ms" for lanes, spent in seconds.items())
    log.info("streams decode in %d lane%s (tried %s)", chosen, "s" if chosen > 1 else "", tried)
    return chosen


def _compile_sampling(leader: Leader, prompt: int) -> None:
    """Streams that are alone have a graph of their own, and so have those who are not."""
    for rows in {1, min(2, leader.scheduler.limits.max_batch)}:
        for sampling in COMPILED:
            _run(leader, [prompt] * rows, [sampling])
        _run(leader, [prompt] * rows, logprobs=1)


def _run(
    leader: Leader,
    prompt_sizes: list[int],
    rules: Sequence[Sampling] = USUAL,
    new_tokens: int = NEW_TOKENS,
    logprobs: int | None = None,
    told: Callable[[int], object] = lambda tokens: None,
) -> None:
    """Answers all prompts, and says after each step how many tokens clients would be sent."""
    for row, size in enumerate(prompt_sizes):
        sampling, name = rules[row % len(rules)], f"0:warm-up-{row}"
        leader.scheduler.submit(
            Request(name, (TOKEN,) * size, new_tokens, sampling=sampling, logprobs=logprobs, uncached=True)
        )
    while not leader.idle:
        leader.turn()
        told(len(prompt_sizes))
