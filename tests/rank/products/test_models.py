"""Whole models on packed products: one rank, uneven pipelines of it, and sequences alone and together.

Both sides multiply the same way, so a pipeline, which runs the very operations of one rank, gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from chorus.rank.load import load_shard, stored_layers
from chorus.rank.pipeline.stage import Stage
from tests.models.gguf_files import TinyModel, Type
from tests.models.test_gguf_import import convert
from tests.rank.pipeline.programs import PROGRAMS, Row
from tests.rank.pipeline.test_pipeline_parity import difference, of, run
from tests.rank.products.test_layers import NEAR
from tests.support.margins import PACKED_TOLERANCE
from tests.support.tiny_model import write_tiny_model


def mixed(path: str, module: nn.Module, *_: Any) -> bool | dict[str, Any]:
    """As recipes of mixed bits have it: some layers finer, some in larger groups, some not at all."""
    if not hasattr(module, "to_quantized") or path.endswith("layers.3.mlp.gate_proj"):
        return False
    if "v_proj" in path or "embed" in path:
        return {"bits": 6, "group_size": 64}
    if "layers.1." in path or path == "lm_head":
        return {"bits": 8, "group_size": 32}
    return {"bits": 3, "group_size": 32} if "down_proj" in path else True


@dataclass(frozen=True)
class Case:
    name: str
    quantize: dict[str, Any]
    overrides: dict[str, Any]
    differs: str


CASES = [
    Case("llama", {"bits": 4, "group_size": 32, "quant_predicate": mixed}, {}, "mixed bits, a head of its own"),
    Case("qwen2", {"bits": 4, "group_size": 64}, {"tie_word_embeddings": True}, "biases in front, a tied head"),
    Case("phi", {"bits": 8, "group_size": 64}, {}, "biases everywhere"),
    Case("phi3", {"bits": 3, "group_size": 32}, {}, "gate and what it opens in one matrix"),
    Case("gemma2", {"bits": 4, "group_size": 32}, {}, "a tied head, another activation"),
    Case("gemma3n", {"bits": 4, "group_size": 32}, {}, "embeddings for each layer"),
    Case("olmo3", {"bits": 5, "group_size": 64}, {}, "sliding windows"),
    Case("qwen3_moe", {"bits": 4, "group_size": 32}, {}, "experts"),
    Case("gpt_oss", {"mode": "mxfp4"}, {}, "experts with biases, 4-bit floats"),
    Case("glm4_moe", {"bits": 6, "group_size": 32}, {}, "experts beside shared ones"),
    Case("deepseek_v3", {"bits": 4, "group_size": 32}, {}, "latent attention, experts"),
    Case("nemotron_h", {"mode": "nvfp4"}, {}, "states, experts of two layers"),
    Case("qwen3_next", {"bits": 2, "group_size": 64}, {}, "hybrid, experts, gates"),
]


def written(case: Case, folder: Path) -> Path:
    return write_tiny_model(folder, case.name, quantize=case.quantize, tokenizer=False, **case.overrides)


def stages(path: Path, edges: Callable[[int], tuple[int, ...]], **settings: Any) -> list[Stage]:
    """A rank for each stretch of layers between the edges."""
    made = [
        load_shard(path, lambda _, own=own: range(*own), **settings) for own in pairwise(edges(stored_layers(path)))
    ]
    assert {shard.policy.name for shard in made} == {"float32, packed"}
    return [shard.stage for shard in made]


def whole(total: int) -> tuple[int, ...]:
    return 0, total


def uneven(total: int) -> tuple[int, ...]:
    return 0, total - 4, total - 1, total


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}: {case.differs}")
def test_one_rank_pipelines_and_batches_say_the_same(case: Case, tmp_path: Path) -> None:
    path = written(case, tmp_path)
    one, three = stages(path, whole), stages(path, uneven)
    for program in PROGRAMS[:3]:  # the others are about caches
        wanted, got = run(program, one), run(program, three)
        if isinstance(wanted, Exception):
            assert type(got) is type(wanted)
            continue
        assert {column: difference(rows, of(column, got)) for column, rows in wanted.items()} == dict.fromkeys(
            wanted, ""
        )
        for column, rows in wanted.items():
            if column in ("batch", "together"):
                assert furthest_from_alone(one[0], rows) <= PACKED_TOLERANCE, column


def furthest_from_alone(stage: Stage, rows: list[Row]) -> float:
    """How far the worst choice of these rows lies below the best, when each history is read anew and in one go."""
    worst = 0.0
    for past, logits in rows:
        alone = stage.forward(mx.array([past]), stage.new_cache())[0][0].astype(mx.float32)
        worst = max(worst, (mx.max(alone) - alone[mx.argmax(logits)]).item())
    return worst


@pytest.mark.parametrize(("kind", "of_tokens"), [(Type.Q4_K, Type.Q6_K), (Type.Q4_1, Type.Q8_0), (Type.Q5_K, Type.F16)])
def test_a_gguf_of_mixed_kinds_is_packed_and_near_float32(kind: Type, of_tokens: Type, tmp_path: Path) -> None:
    path, _ = convert(tmp_path, TinyModel(kind=kind, embedding_kind=of_tokens))
    packed, exact = (load_shard(path, range, cpu_products=products) for products in ("auto", "float32"))
    assert (packed.policy.name, exact.policy.name) == ("float32, packed", "float32, unpacked")
    ours, right = (
        shard.stage.forward(mx.array([[7, 3, 11, 200, 42]]), shard.stage.new_cache())[0] for shard in (packed, exact)
    )
    assert (mx.linalg.norm(ours - right) / mx.linalg.norm(right)).item() < NEAR


def test_packed_keys_and_values_go_with_packed_products(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path, "llama", quantize={"bits": 4, "group_size": 32}, tokenizer=False, head_dim=32)
    one, three = stages(path, whole, kv_bits=8), stages(path, uneven, kv_bits=8)
    wanted, got = run(PROGRAMS[0], one), run(PROGRAMS[0], three)
    assert not isinstance(wanted, Exception)
    assert {column: difference(rows, of(column, got)) for column, rows in wanted.items()} == dict.fromkeys(wanted, "")
