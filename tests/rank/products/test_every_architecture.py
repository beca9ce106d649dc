"""Whatever an architecture does with its layers, the kernels stand where they stood: with products that round nothing
in place of theirs, every model says what it says unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from chorus import platform
from chorus.rank.load import load_shard
from chorus.rank.pipeline.stage import Stage
from chorus.rank.products import kernels, mlps, worth
from chorus.rank.products.activations import Between
from chorus.rank.products.kernels import Combine, Matrix
from chorus.rank.products.packing import Floats, unpack
from tests.support.architectures import ARCHITECTURES
from tests.support.tiny_model import write_tiny_model

NEAR = 1e-3
"""Of the largest logit: a tenth of what the kernels' own rounding would do, and a hundred times what float32's does."""
ROUNDING = 1e-4
"""Likewise, where nothing is packed: what sums in another order do to a dozen layers."""
ELSEWHERE = {
    "afm7": "has linear layers of its own, which mlx-lm cannot quantize",
    "bitnet": "its products are Metal's",
    "muse_spark": "its products are Metal's",
    "olmo": "mlx-lm cannot run it",
    "prism_hadamard_qwen35": "comes in a packed form of its own",
}


class Unrounded:
    """A kernel that multiplies with the very numbers of its matrices."""

    nbytes = 0

    def __init__(self, matrices: Sequence[Matrix], between: Between | None = None, last: Matrix | None = None) -> None:
        self._matrices, self._between, self._last = matrices, between, last
        self.width = matrices[0].weights.columns
        self.count = 1 if last else len(matrices)
        self.rows = (last or matrices[-1]).weights.rows

    def __call__(self, rows: Floats) -> list[Floats]:
        made = self.some(rows, range(len(self._matrices)))
        if self._between is None or self._last is None:
            return made
        return [_product(self._between.compute(made).astype(np.float32), self._last)]

    def some(self, rows: Floats, places: Sequence[int]) -> list[Floats]:
        return [_product(rows, self._matrices[place]) for place in places]


def _product(rows: Floats, matrix: Matrix) -> Floats:
    made = rows @ unpack(matrix.weights).T
    return made if matrix.bias is None else made + matrix.bias


@pytest.fixture
def unrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    recognised: dict[Combine, Between] = {}
    find = mlps._between

    def remember(parts: Sequence[Floats], found: Floats) -> Between | None:
        if between := find(parts, found):
            recognised[between.build] = between
        return between

    monkeypatch.setattr(mlps, "_between", remember)
    monkeypatch.setattr(kernels, "linears", Unrounded)
    monkeypatch.setattr(kernels, "mlp", lambda build, inner, last: Unrounded(inner, recognised[build], last))


@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - ELSEWHERE.keys()))
def test_every_architecture_says_on_the_kernels_places_what_it_says_unpacked(name: str, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / name, name, quantize={"bits": 4, "group_size": 32}, tokenizer=False)
    unpacked = said(load_shard(path, range, policy="float32, unpacked").stage)
    packed = said(load_shard(path, range, policy="float32, packed").stage)
    allowed = np.isfinite(unpacked)  # some rule out tokens
    assert np.array_equal(np.isfinite(packed), allowed)
    assert np.abs(packed[allowed] - unpacked[allowed]).max() <= NEAR * np.abs(unpacked[allowed]).max()


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - {"olmo", "bitnet", "muse_spark"}))
def test_every_architecture_says_the_same_where_its_plain_layers_are_the_kernels(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worth, "LEAST", 1024)  # gemma3n reads the weights of a layer of 64 numbers itself
    monkeypatch.setattr(platform, "rank_threads", lambda: 1)
    path = write_tiny_model(tmp_path / name, name, tokenizer=False)
    plain, ours = (load_shard(path, range, cpu_products=products) for products in ("blas", "auto"))
    assert ours.in_kernels
    assert not plain.in_kernels
    exact, made = said(plain.stage), said(ours.stage)
    allowed = np.isfinite(exact)
    assert np.array_equal(np.isfinite(made), allowed)
    assert np.abs(made[allowed] - exact[allowed]).max() <= ROUNDING * np.abs(exact[allowed]).max()


def said(stage: Stage) -> Floats:
    """The logits of a prompt and of a token after it."""
    cache = stage.new_cache()
    prompt, token = (stage.forward(mx.array([tokens]), cache)[0] for tokens in ([3, 5, 7, 9, 11, 2, 4], [6]))
    return np.array(mx.concatenate([prompt, token]))
