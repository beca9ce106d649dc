from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from chorus.platform.accelerator import device
from chorus.rank.cuda import hooks
from chorus.rank.cuda.attention import Attention
from chorus.rank.cuda.products import LEAST_ROWS, RowsTogether


@pytest.mark.parametrize(("backend", "hooked"), [("cpu", False), ("metal", False), ("cuda", True)])
def test_only_cuda_has_them_and_once(backend: str, hooked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"attention": mx.fast.scaled_dot_product_attention, "product": mx.quantized_matmul}
    monkeypatch.setattr(device, "backend", lambda: backend)
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", own["attention"])
    monkeypatch.setattr(mx, "quantized_matmul", own["product"])
    for _ in range(2):
        hooks.install()
    found: dict[str, Any] = {"attention": mx.fast.scaled_dot_product_attention, "product": mx.quantized_matmul}
    assert [isinstance(found["attention"], Attention), isinstance(found["product"], RowsTogether)] == [hooked] * 2
    for name, function in found.items():
        assert (function._own if hooked else function) is own[name]


@pytest.mark.parametrize("batch", [(1, 1), (2, 1), (7, 1), (8, 1), (3, 5), (1, 20), (6,), (2, 3, 4)])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_together_give_what_they_give_one_by_one(batch: tuple[int, ...], bits: int) -> None:
    asked = []

    def noted(x: mx.array, *arguments: Any, **options: Any) -> mx.array:
        asked.append(x.shape)
        return mx.quantized_matmul(x, *arguments, **options)

    matrix = mx.quantize(mx.random.normal((48, 64)), group_size=32, bits=bits)
    x = mx.random.normal((*batch, 64))
    options = {"transpose": True, "group_size": 32, "bits": bits}
    made = RowsTogether(noted)(x, *matrix, **options)
    assert made.shape == (*batch, 48)
    assert mx.allclose(made, mx.quantized_matmul(x, *matrix, **options), rtol=1e-5, atol=1e-5)
    rows = mx.zeros(batch).size
    assert asked == [(1, max(rows, LEAST_ROWS), 64) if rows > 1 else x.shape]


def test_a_matrix_for_each_of_a_batch_is_left_to_mlx() -> None:
    matrices = mx.quantize(mx.random.normal((3, 48, 64)), group_size=32, bits=4)
    x = mx.random.normal((3, 2, 64))
    options = {"transpose": True, "group_size": 32, "bits": 4}
    made = RowsTogether(mx.quantized_matmul)(x, *matrices, **options)
    assert mx.array_equal(made, mx.quantized_matmul(x, *matrices, **options))
