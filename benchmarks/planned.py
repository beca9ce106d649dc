"""Clusters and models that nobody owns, for timing the planner: random, but the same for the same seed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from chorus.planning.cache_sizes import CacheFacts
from chorus.planning.costs import Links, Machine, Workload
from chorus.planning.facts import LayerFacts, ModelFacts, Weights
from chorus.planning.planner import plan

NODES = 64
_GB = 10**9
_CORE_FLOPS, _CORE_BANDWIDTH = 0.28e12, 10e9


@dataclass(frozen=True)
class Question:
    """Layers, bytes of each, prompt: from a model for one desk to one that needs most of the nodes."""

    layers: int
    layer_bytes: float
    prompt: int


QUESTIONS = (
    Question(32, 0.4e9, 512),
    Question(80, 1.5e9, 512),
    Question(80, 1.5e9, 4096),
    Question(100, 1.5e9, 8192),
    Question(61, 11e9, 2048),
)


def planning_seconds(seed: int) -> Iterator[tuple[Question, float]]:
    """CPU seconds of this process for one plan over 64 machines, question by question."""
    chance = random.Random(seed)
    for question in QUESTIONS:
        facts, nodes = _model(question), [_node(index, chance) for index in range(NODES)]
        work = Workload(prompt=question.prompt, context=16384)
        begin = time.process_time()
        plan(facts, nodes, Links(), work)
        yield question, time.process_time() - begin


def _node(index: int, chance: random.Random) -> Machine:
    memory, cores = chance.choice([16, 24, 32, 48, 64, 96, 128]), chance.randint(8, 80)
    return Machine(f"node{index:02}", "metal", memory * _GB, cores * _CORE_FLOPS, cores * _CORE_BANDWIDTH)


def _model(question: Question) -> ModelFacts:
    size = int(question.layer_bytes)
    layer = LayerFacts(Weights(size, 0, size // 2, size // 2), CacheFacts(2 * 1024))
    ends = Weights(_GB, 0, _GB // 2, _GB // 2)
    return ModelFacts(
        name="imagined",
        model_type="llama",
        layers=(layer,) * question.layers,
        embedding=ends,
        head=ends,
        tied=False,
        tokens=ends,
        around=Weights(),
        hidden=8192,
        vocabulary=128_000,
        heads=64,
        groups=8,
        context=131_072,
        stored_dtype="bfloat16",
        quantized=False,
    )
