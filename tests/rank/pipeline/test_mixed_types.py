"""Stages whose weights are of different number types: each computes in its own."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from chorus.engine.leader import Leader
from chorus.engine.lifecycle.group import form_group
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
from chorus.messages.engine import Progress, Request, Sampling
from chorus.rank.cache import caches
from chorus.rank.pipeline.stage import Stage, layer_count
from chorus.rank.runner import Runner
from tests.rank.pipeline import recorded_types
from tests.support.architectures import ARCHITECTURES, build
from tests.support.architectures.build import instantiate
from tests.support.margins import furthest_from_best, load_reference
from tests.support.ranks import Ranks
from tests.support.tiny_model import write_tiny_model

TOKENS = mx.array([[5, 17, 99, 3, 42]])
EDGE = 3
PAIRS = [(mx.float32, mx.bfloat16), (mx.bfloat16, mx.float32), (mx.bfloat16, mx.float16)]
# Three times what bfloat16 moves a logit of this model by, where neither of two candidates is wrong.
ROUNDING = 0.05
# A plain one, windows, states, and every way of handing more than one array from layer to layer.
NAMES = (
    "llama",
    "olmo3",
    "mamba2",
    "qwen3_next",
    "rwkv7",
    "hunyuan",
    "talkie",
    "kimi_k3",
    "deepseek_v41",
    "gemma3n",
    "gemma4",
    "afm7",
)


def parts(name: str, first: mx.Dtype, second: mx.Dtype) -> tuple[Stage, Stage]:
    """Two stages of a model of which nothing is computed yet."""
    one, other = (instantiate(ARCHITECTURES[name], 0, kind) for kind in (first, second))
    return Stage(one, 0, EDGE), Stage(other, EDGE, layer_count(other))


def types_of(chain: tuple[Stage, Stage]) -> list[mx.Dtype]:
    """Of all that the second stage computes and keeps, two chunks long."""
    first, second = chain
    own, other = first.new_cache(), second.new_cache()
    results = [second.forward(TOKENS, other, first.forward(TOKENS, own)) for _ in range(2)]
    return [array.dtype for result in results for array in (*result, *caches.arrays(other))]


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_computes_in_its_own_type_whatever_it_receives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Types are known without computing, so the weights may be any; a CPU has no half precision experts anyway."""
    monkeypatch.setattr(mx, "async_eval", lambda *arrays: None)
    for sent, own in PAIRS:
        mixed, alike = (types_of(parts(name, kind, own)) for kind in (sent, own))
        assert mixed == alike, f"{sent} into {own}"


def test_what_comes_from_a_stage_of_the_same_type_is_taken_as_it_is() -> None:
    _, second = parts("llama", mx.bfloat16, mx.bfloat16)
    received = [mx.zeros((1, 5, 64), mx.bfloat16), mx.zeros((1, 5, 2), mx.float32)]
    assert second._in_own_type(received) is received


def test_most_numbers_of_a_stage_tell_its_type_packed_ones_aside() -> None:
    model = build("llama", dtype=mx.bfloat16)
    nn.quantize(model, group_size=32, bits=8)
    stage = Stage(model, EDGE, layer_count(model))
    norm = stage.model.layers[EDGE].input_layernorm
    norm.weight = norm.weight.astype(mx.float32)
    assert {str(array.dtype) for _, array in tree_flatten(stage.model.parameters())} == {
        "mlx.core.uint32",
        "mlx.core.bfloat16",
        "mlx.core.float32",
    }
    assert stage.number_type == mx.bfloat16


@pytest.mark.parametrize("types", [("bfloat16", "float32"), ("float32", "bfloat16")], ids=" after ".join)
def test_two_processes_compute_each_in_its_own_type_and_say_what_one_could_say(
    types: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The types are those that the layers see while requests are answered, in both processes."""
    model = write_tiny_model(tmp_path / "model", "qwen3", dtype="bfloat16")
    requests = [Request(f"1:{i}", tuple(range(9 + i, 40)), 12, sampling=Sampling(temperature=0)) for i in range(3)]
    with Ranks(tmp_path) as ranks, contextlib.ExitStack() as cleanup:
        addresses = ranks.addresses(2)
        ranks.follower(1, addresses[1], module="tests.rank.pipeline.recorded_rank")
        own = recorded_types.keep_them(monkeypatch)
        spec = ranks.spec(model, addresses, split=(3, 4), policies=types)
        group = form_group(spec, lambda fraction: None, cleanup)
        answers: dict[str, list[int]] = {request.id: [] for request in requests}

        def publish(news: list[Progress]) -> None:
            for progress in news:
                assert not progress.error
                answers[progress.id].extend(progress.tokens)

        limits = SchedulerLimits(context=256, prefill_chunk=16, lookahead=group.lookahead, max_batch=8)
        leader = Leader(Runner(group.shard.stage), Scheduler(limits), publish, group.followers)
        for request in requests:
            assert leader.scheduler.submit(request) is None
        while not leader.idle:
            leader.turn()
        assert own == {types[0]}
        assert set(re.findall(r"computes in (\w+)", ranks.log("rank1"))) == {types[1]}
        assert [group.shard.policy.dtype, group.followers.followers[0].loaded.dtype] == list(types)
    reference = load_reference(model)
    for request in requests:
        answered = answers[request.id]
        assert len(answered) == 12
        prompt = list(request.prompt)
        assert furthest_from_best(reference, prompt, answered) < ROUNDING
        assert furthest_from_best(reference, prompt, [token - 1 for token in answered]) > ROUNDING
