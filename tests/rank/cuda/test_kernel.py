from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest

from chorus.platform.accelerator import device
from chorus.rank.cuda.attention import TOLERANCE, Attention
from chorus.rank.cuda.kernel import MOST_QUERIES, Shape, _kernel, attend, parts_of

LLAMA = Shape(mx.bfloat16, 128, 128, 8, 4, 1)
SHAPES = [
    LLAMA,
    Shape(mx.float16, 128, 128, 8, 4, 1),
    Shape(mx.bfloat16, 64, 64, 3, 3, 1),
    Shape(mx.bfloat16, 80, 80, 2, 1, 1),
    Shape(mx.bfloat16, 96, 96, 2, 4, 1),
    Shape(mx.bfloat16, 256, 256, 1, 8, 1),
    Shape(mx.bfloat16, 128, 128, 2, 16, 1, window=50),
    Shape(mx.bfloat16, 64, 64, 8, 8, 1, window=16, sinks=True),
    Shape(mx.bfloat16, 128, 128, 8, 4, MOST_QUERIES),
    Shape(mx.bfloat16, 192, 128, 4, 1, 1),
    Shape(mx.bfloat16, 576, 512, 1, 16, 1),
    Shape(mx.bfloat16, 128, 128, 8, 5, 3, window=20, sinks=True),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_block_computes_a_part_of_all_that_is_asked_and_fits_into_its_memory(shape: Shape) -> None:
    assert shape.fits
    assert shape.blocks_per_row * shape.together == shape.heads * shape.group * shape.queries
    shared = 4 * shape.together * (shape.width + 4 * shape.value_width + 4 * 32 + 8)
    assert shared <= 48 * 1024


@pytest.mark.parametrize(
    "shape",
    [
        Shape(mx.float32, 128, 128, 8, 4, 1),
        Shape(mx.bfloat16, 100, 100, 8, 4, 1),
        Shape(mx.bfloat16, 128, 128, 8, 4, MOST_QUERIES + 1),
        Shape(mx.bfloat16, 0, 0, 8, 4, 1),
        Shape(mx.bfloat16, 4096, 128, 8, 4, 1),
    ],
)
def test_what_the_kernel_is_not_made_for_is_said(shape: Shape) -> None:
    assert not shape.fits


@pytest.mark.parametrize(
    ("rows", "longest", "parts"),
    [(32, 330, 1), (32, 2048, 2), (32, 4096, 4), (8, 4096, 4), (2, 32768, 16), (2, 10**6, 16), (512, 10**6, 1)],
)
def test_only_long_rows_are_cut(rows: int, longest: int, parts: int) -> None:
    assert parts_of(LLAMA, rows, longest) == parts


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict]]:
    """Everything up to MLX's own call; what it would launch is noted instead."""
    noted: list[dict] = []

    def cuda_kernel(name, input_names, output_names, source, ensure_row_contiguous=True):
        def launch(*, inputs, template, grid, threadgroup, output_shapes, output_dtypes):
            noted.append({
                "name": name, "inputs": dict(zip(input_names, inputs, strict=True)), "source": source,
                "constants": dict(template), "blocks": grid[0] // threadgroup[0],
            })  # fmt: skip
            assert len(output_names) == len(output_shapes)
            return [mx.zeros(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]

        return launch

    monkeypatch.setattr(mx.fast, "cuda_kernel", cuda_kernel)
    _kernel.cache_clear()
    yield noted
    _kernel.cache_clear()


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("parts", [1, 4])
def test_a_call_launches_one_kernel_or_one_for_parts_and_one_that_joins_them(
    launches: list[dict], parts: int, sinks: bool
) -> None:
    shape = Shape(mx.bfloat16, 64, 64, 2, 3, 2, sinks=sinks)
    q, kv = mx.zeros((5, 6, 2, 64), mx.bfloat16), mx.zeros((5, 2, 300, 64), mx.bfloat16)
    lengths = mx.array([300, 2, 8, 100, 7], mx.int32)
    given = mx.zeros((6,), mx.bfloat16) if sinks else None
    out = attend(q, kv, kv, lengths, shape=shape, scale=0.125, longest=300, sinks=given, parts=parts)
    assert out.shape == q.shape
    assert out.dtype == mx.bfloat16
    assert [launch["name"].split("_")[1] for launch in launches] == (["whole"] if parts == 1 else ["part", "join"])
    first = launches[0]
    assert first["blocks"] == 5 * shape.blocks_per_row * parts
    assert (first["constants"]["T"] * first["constants"]["N"], first["constants"]["C"]) == (6, 2)
    for launch in launches:
        # Counted once, where the result is made.
        assert ("sinks" in launch["inputs"]) == ("sinks[" in launch["source"]) == (sinks and launch is launches[-1])
        for word in ("SINKS", "PARTS", "WRITE"):
            assert word not in launch["source"]


@pytest.mark.skipif(device.backend() != "cuda", reason="needs CUDA")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_computes_what_mlx_does(shape: Shape) -> None:
    attention = Attention(mx.fast.scaled_dot_product_attention)
    assert max(attention._distance(shape, parts) for parts in (1, 2, 4)) < TOLERANCE
