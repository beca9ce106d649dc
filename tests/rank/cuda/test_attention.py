"""The kernel itself needs CUDA; here something slow stands in its place, which is told the same and no more."""

from __future__ import annotations

import logging

import mlx.core as mx
import pytest

from chorus.rank.cache import caches
from chorus.rank.cuda.attention import Attention
from chorus.rank.cuda.kernel import Shape
from tests.rank.cuda.test_masks import rows_of
from tests.support.architectures import ARCHITECTURES
from tests.support.architectures.build import build_config

MLX = mx.fast.scaled_dot_product_attention

# One of each way to call attention.
KINDS = ("llama", "qwen3", "gemma3_text", "gpt_oss", "phi3", "cohere2", "deepseek_v3", "mistral3", "olmo2",
         "qwen3_moe", "qwen3_next", "falcon_h1", "nemotron_h", "stablelm", "gpt_neox", "smollm3")  # fmt: skip


class Slow:
    """Knows only what the kernel is given: the rows' lengths instead of the mask."""

    def __init__(self) -> None:
        self.asked: list[Shape] = []

    def __call__(self, q, k, v, lengths, *, shape, scale, longest, sinks=None, parts=None):
        assert k.shape[2] == longest
        asking = lengths[:, None, None, None] - shape.queries + mx.arange(shape.queries)[:, None]
        seen = asking >= mx.arange(longest)
        if shape.window:
            seen = seen & (asking < mx.arange(longest) + shape.window)
        self.asked.append(shape)
        return MLX(q, k, v, scale=scale, mask=seen, sinks=sinks)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """In the kernel's place, for any number type: a CPU computes half precision far too slowly."""
    slow = Slow()
    monkeypatch.setattr(Shape, "fits", True)
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", Attention(MLX, slow))
    return slow


def decoded(name: str, count: int) -> mx.array:
    """The logits of the next tokens of three rows, none as long as another."""
    model = build_config(ARCHITECTURES[name])
    singles = []
    for length in (3, 9, 6):
        cache = caches.fresh(model)
        model(mx.array([[*range(2, 2 + length)]]), cache=cache)
        singles.append(cache)
    return model(mx.array([[4, 6, 5][:count], [7, 3, 9][:count], [2, 8, 4][:count]]), cache=caches.merge(singles))


@pytest.mark.parametrize("name", KINDS)
def test_models_say_the_same_by_lengths_as_by_masks(name: str, slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [decoded(name, count) for count in (1, 3)]
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", MLX)
    for with_lengths, with_masks in zip(made, [decoded(name, count) for count in (1, 3)], strict=True):
        assert mx.abs(with_lengths - with_masks).max().item() <= 1e-4 * mx.abs(with_masks).max().item()
    if name in ("llama", "qwen3", "phi3"):
        assert {shape.queries for shape in slow.asked} == {1, 3}


ROWS = (2, 5)


def unequal() -> tuple[mx.array, mx.array, mx.array]:
    """A mask of ours, queries and keys for it."""
    rows = rows_of(*ROWS)
    mask = rows.make_mask(1)
    assert isinstance(mask, mx.array)
    return mask, mx.ones((2, 4, 1, 8)), mx.ones((2, 2, max(ROWS) + 1, 8))


def test_a_kernel_that_cannot_be_compiled_is_tried_once_told_once_and_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def broken(*arguments, **options):
        tried.append(options["parts"])
        raise RuntimeError("nvrtc: no such processor")

    monkeypatch.setattr(Shape, "fits", True)
    mask, q, k = unequal()
    attention = Attention(MLX, broken)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert mx.array_equal(attention(q, k, k, scale=1.0, mask=mask), MLX(q, k, k, scale=1.0, mask=mask))
    assert tried == [1]
    assert len(caplog.records) == 1
    assert "left to MLX" in caplog.text
    assert "no such processor" in caplog.text


def test_a_kernel_that_computes_something_else_is_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(q, k, v, lengths, **options):
        return mx.zeros(q.shape, q.dtype)

    monkeypatch.setattr(Shape, "fits", True)
    mask, q, k = unequal()
    with caplog.at_level(logging.WARNING):
        assert mx.array_equal(Attention(MLX, wrong)(q, k, k, scale=1.0, mask=mask), MLX(q, k, k, scale=1.0, mask=mask))
    assert "is off by" in caplog.text


def test_what_the_kernel_is_not_made_for_goes_to_mlx() -> None:
    slow = Slow()
    attention = Attention(MLX, slow)
    mask, q, k = unequal()
    for odd in (None, "causal", mask & True):
        made = attention(q, k, k, scale=1.0, mask=odd)
        assert mx.array_equal(made, MLX(q, k, k, scale=1.0, mask=odd))
    attention(q, k, k, scale=1.0, mask=mask)  # float32
    half = mx.bfloat16
    attention(q.astype(half)[:1], k.astype(half)[:1], k.astype(half)[:1], scale=1.0, mask=mask[:1])
    assert not slow.asked
