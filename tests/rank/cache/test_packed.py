from __future__ import annotations

from functools import cache
from itertools import pairwise

import mlx.core as mx
import mlx.nn as nn
import pytest

from chorus.rank.cache import caches
from chorus.rank.cache.packed import CannotPack, PackedCache, Packing, packing_of
from chorus.rank.pipeline.stage import Stage, layer_count
from chorus.rank.upstream.decoders import KVCache
from tests.rank.cache.chain import Chain
from tests.rank.cache.conversations import Conversations
from tests.rank.pipeline.programs import Machine, batch, together
from tests.support.architectures import ARCHITECTURES
from tests.support.architectures.build import build_config, instantiate
from tests.support.architectures.facts import difference

HEADS, WIDTH = 2, 64


def drawn(seed: int, rows: int, tokens: int, width: int = WIDTH) -> mx.array:
    return mx.random.normal((rows, HEADS, tokens, width), key=mx.random.key(seed))


def filled(tokens: int, seed: int, packing: Packing) -> PackedCache:
    entry = PackedCache(packing)
    entry.update_and_fetch(drawn(seed, 1, tokens), drawn(seed + 100, 1, tokens))
    return entry


@pytest.mark.parametrize("bits", [8, 4])
def test_packed_keys_and_values_are_those_written_but_for_half_a_step_of_their_group(bits: int) -> None:
    entry = PackedCache(Packing(bits, direct=False))
    keys, values = drawn(1, 2, 300), drawn(2, 2, 300)
    for written, got in zip((keys, values), entry.update_and_fetch(keys, values), strict=True):
        step = (written.max(axis=-1) - written.min(axis=-1)) / (2**bits - 1)
        assert mx.all(mx.abs(got - written).max(axis=-1) <= step).item()


@pytest.mark.parametrize(("bits", "most"), [(8, 0.6), (4, 0.35)])
def test_packed_keys_and_values_take_a_part_of_those_in_float16(bits: int, most: float) -> None:
    for dtype in (mx.float32, mx.float16):
        packed, plain = PackedCache(Packing(bits, direct=True)), KVCache()
        tokens = drawn(1, 1, 3).astype(dtype)
        packed.update_and_fetch(tokens, tokens)
        plain.update_and_fetch(tokens.astype(mx.float16), tokens.astype(mx.float16))
        assert caches.bytes_per_token([packed]) <= most * caches.bytes_per_token([plain])


def test_single_tokens_get_packed_arrays_only_where_the_model_takes_them() -> None:
    token = drawn(3, 1, 1)
    for direct in (True, False):
        entry = filled(5, 1, Packing(8, direct))
        assert not hasattr(entry, "bits")
        keys, _ = entry.update_and_fetch(token, token)
        assert isinstance(keys, tuple) == hasattr(entry, "bits") == direct
        entry.update_and_fetch(drawn(4, 1, 2), drawn(4, 1, 2))
        assert not hasattr(entry, "bits")


def test_packed_rows_hold_what_sequences_alone_would() -> None:
    packing = Packing(8, direct=False)
    singles = [filled(tokens, tokens, packing) for tokens in (3, 260, 7)]
    rows = PackedCache.merge(singles)
    for step in range(2):
        new = drawn(step, 3, 1)
        rows.update_and_fetch(new, new)
        for row, single in enumerate(singles):
            single.update_and_fetch(new[row : row + 1], new[row : row + 1])
    rows.filter(mx.array([2, 0]))
    for row, single in enumerate((singles[2], singles[0])):
        for ours, theirs in zip(rows.extract(row).keys_and_values(), single.keys_and_values(), strict=True):
            assert mx.array_equal(ours, theirs).item()


# How models meet their caches: handed on as fetched, used otherwise, latents instead of keys, keys of another layer.
MODELS = {
    "llama": {"head_dim": 32},
    "gemma2": {"head_dim": 32},
    "deepseek_v3": {"qk_rope_head_dim": 32},
    "afm7": {"hidden_dim": 128},
}
DIRECT = {"llama": True, "gemma2": False, "deepseek_v3": False, "afm7": True}


@cache
def model(name: str) -> nn.Module:
    return build_config({**ARCHITECTURES[name], **MODELS[name]})


@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_stages_says_what_it_says_whole(name: str) -> None:
    packing = packing_of(model(name), 8)
    assert packing.direct == DIRECT[name]
    layers = layer_count(model(name))
    machines = []
    for edges in ((0, layers), (0, 2, layers)):
        machines.append(Machine([Stage(build_again(name), *span, packing) for span in pairwise(edges)]))
        for program in (batch, together):
            program(machines[-1])
    for column, rows in machines[0].rows.items():
        wanted = mx.stack([row for _, row in rows])
        assert difference(mx.stack([row for _, row in machines[1].rows[column]]), wanted) < 1e-4


def build_again(name: str) -> nn.Module:
    """A stage changes the model it is given."""
    return build_config({**ARCHITECTURES[name], **MODELS[name]})


def test_what_is_stored_of_packed_sequences_serves_others() -> None:
    packing = packing_of(model("llama"), 8)
    layers = layer_count(model("llama"))
    stages = [Stage(build_again("llama"), *span, packing) for span in pairwise((0, 3, layers))]
    talk = Conversations(Chain(stages), seed=5)
    for _ in range(10):
        talk.turn()
    assert talk.worst < 1e-4


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gpt_oss", "windows"),
        ("llama4", "windows"),
        ("mamba2", "recurrent states"),
        ("qwen3_next", "recurrent states"),
        ("deepseek_v41", "a cache of its own kind"),
        ("llama", "16 numbers are no multiple of 32"),
    ],
)
def test_what_cannot_be_packed_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(CannotPack, match=f"{reason}.*leave --kv-bits out"):
        packing_of(instantiate(ARCHITECTURES[name], 0, mx.float32), 8)
