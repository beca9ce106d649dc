"""Decode attention on CUDA: every row reads its own keys and values, as far as it has any.

MLX's fused kernels for one query take no array as a mask, so that a batch of unequal rows is computed in several steps
over the width of the longest row: on an H200 34 ms for 32 rows of 4,096 tokens in 32 layers, and 7.5 with this kernel.

A warp takes 16 keys at a time. Four lanes share two of them, 16 bytes each, so that a score takes two exchanges between
lanes; then lanes stand side by side over the width of a value. While it computes, its next keys and these values are on
their way. What the heads of a group and the queries of a row ask for is computed together, as far as registers go: they
read the same keys. Long rows are cut into parts, which a second kernel joins. Keys and values that lie otherwise than a
cache lays them are read one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as memoize
from functools import cached_property, lru_cache, partial
from typing import Any, cast

import mlx.core as mx

WARPS, WARPS_OF_PARTS = 4, 2
"""Of a block that computes a row, or a part of one: small blocks fill a GPU more evenly."""
PIECE = 8
"""Numbers in 16 bytes of half precision, which are read at once."""
MOST_TOGETHER = 8
"""Heads and queries that one block computes."""
MOST_QUERIES = 16
MOST_WIDTH = 2048
"""Numbers of all outputs of a block: four warps of them fit into the 48 KiB that every block may have."""
SHORTEST_PART = 512
"""To join parts is another kernel."""
MOST_PARTS = 16
MOST_LAUNCHES = 1024
WAVE = 792
"""Blocks of a part that an H200 computes at once: six of them fit into the registers of each of its 132 processors."""
BUSY = 0.9
"""Of them, on average, is enough."""

_ATTEND = r"""
  constexpr int CK = D / 8, CV = DV / 8, NK = (CK + 3) / 4, NV = (CV + 31) / 32, R = CV < 32 ? 32 / CV : 1;
  constexpr int TILE = 16, VALUES = (TILE + R - 1) / R;
  constexpr float NONE = -1e30f;
  PARTS
  const int s = blockIdx.x % S, t = blockIdx.x / S % T, h = blockIdx.x / (S * T) % HK, b = blockIdx.x / (S * T * HK);
  const int lane = threadIdx.x & 31, w = threadIdx.x >> 5, four = lane & 3, group = lane >> 2;
  __shared__ __align__(16) float qs[N][D];
  __shared__ __align__(16) float ps[W][TILE][N];
  __shared__ float sm[W][N], sl[W][N], sa[W][N][DV];
  const float in_twos = scale[0] * 1.4426950408889634f;
  for (int i = threadIdx.x; i < N * D; i += W * 32) {
    const int v = t * N + i / D;
    const int64_t from = b * q_strides[0] + (h * G + v % G) * q_strides[1] + v / G * q_strides[2];
    qs[i / D][i % D] = float(q[from + i % D * q_strides[3]]) * in_twos;
  }
  __syncthreads();
  const int before = lengths[b] - C;
  const int stop = before + (t * N + N - 1) / G + 1;
  const int start = WINDOW ? max(0, before + t * N / G - WINDOW + 1) : 0;
  const int part_size = (stop - start + S - 1) / S;
  const int lo = start + s * part_size, hi = min(lo + part_size, stop);
  const X* kp = k + b * k_strides[0] + h * k_strides[1];
  const X* vp = v + b * v_strides[0] + h * v_strides[1];
  float m[N], l[N], acc[N][NV][8];
  for (int g = 0; g < N; g++) {
    m[g] = NONE; l[g] = 0.f;
    for (int n = 0; n < NV; n++) for (int e = 0; e < 8; e++) acc[g][n][e] = 0.f;
  }
  union Piece { uint4 all; X one[8]; };
  const int r0 = CV < 32 ? lane / CV : 0, c0 = CV < 32 ? lane % CV : lane;
  const bool takes = CV >= 32 || lane < R * CV;
  auto run = [&](auto* tag) {
    constexpr bool WHOLE = sizeof(*tag) == 1, AHEAD = WHOLE && NK <= 8;
    constexpr int EARLY = WHOLE && NV == 1 ? (VALUES < 8 ? VALUES : 8) : 0;
    auto read = [](const X* from, int64_t step, int c) {
      Piece x;
      if constexpr (WHOLE) x.all = *(const uint4*)(from + c * 8);
      else for (int e = 0; e < 8; e++) x.one[e] = from[(c * 8 + e) * step];
      return x;
    };
    auto key = [&](int base, int i, int u) {
      const int c = four + 4 * i;
      Piece x;
      if (CK % 4 == 0 || c < CK)
        x = read(kp + (int64_t)min(base + group + 8 * u, hi - 1) * k_strides[2], k_strides[3], c);
      return x;
    };
    auto value = [&](int row, int c) {
      return read(vp + (int64_t)min(row, hi - 1) * v_strides[2], v_strides[3], c);
    };
    auto add = [&](int r, int n, const Piece& x) {
      #pragma unroll
      for (int g = 0; g < N; g++) {
        const float p = ps[w][r][g];
        #pragma unroll
        for (int e = 0; e < 8; e++) acc[g][n][e] += p * float(x.one[e]);
      }
    };
    Piece ahead[AHEAD ? NK : 1][2], early[EARLY ? EARLY : 1];
    auto begin = [&](int base) {
      if (!AHEAD || base >= hi) return;
      #pragma unroll
      for (int i = 0; i < NK; i++)
        #pragma unroll
        for (int u = 0; u < 2; u++) ahead[AHEAD ? i : 0][u] = key(base, i, u);
    };
    const int first = lo + w * TILE;
    begin(first);
    for (int base = first; base < hi; base += W * TILE) {
      if (takes) {
        #pragma unroll
        for (int x = 0; x < EARLY; x++) early[x] = value(base + r0 + R * x, c0);
      }
      float dot[N][2];
      #pragma unroll
      for (int g = 0; g < N; g++) dot[g][0] = dot[g][1] = 0.f;
      #pragma unroll
      for (int i = 0; i < NK; i++) {
        const int c = four + 4 * i;
        Piece x[2];
        #pragma unroll
        for (int u = 0; u < 2; u++) x[u] = AHEAD ? ahead[AHEAD ? i : 0][u] : key(base, i, u);
        if (CK % 4 == 0 || c < CK) {
          #pragma unroll
          for (int g = 0; g < N; g++) {
            float a[8];
            *(float4*)a = *(const float4*)&qs[g][c * 8]; *(float4*)(a + 4) = *(const float4*)&qs[g][c * 8 + 4];
            #pragma unroll
            for (int u = 0; u < 2; u++)
              #pragma unroll
              for (int e = 0; e < 8; e++) dot[g][u] += a[e] * float(x[u].one[e]);
          }
        }
      }
      begin(base + W * TILE);
      // Of the four lanes of two keys, two go on with the sum of one, and two with that of the other.
      const int its = four >> 1, j = base + group + 8 * its;
      #pragma unroll
      for (int g = 0; g < N; g++) {
        const int last = before + (t * N + g) / G;
        float sum = (its ? dot[g][1] : dot[g][0]) + __shfl_xor_sync(0xffffffffu, its ? dot[g][0] : dot[g][1], 2);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        if (j >= hi || j > last || (WINDOW && j <= last - WINDOW)) sum = 2 * NONE;
        float most = fmaxf(m[g], sum);
        #pragma unroll
        for (int o = 2; o < 32; o <<= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, o));
        const float f = exp2f(m[g] - most), p = sum > NONE ? exp2f(sum - most) : 0.f;
        m[g] = most; l[g] = l[g] * f + p;
        #pragma unroll
        for (int n = 0; n < NV; n++)
          #pragma unroll
          for (int e = 0; e < 8; e++) acc[g][n][e] *= f;
        if (!(four & 1)) ps[w][group + 8 * its][g] = p;
      }
      __syncwarp();
      if (takes) {
        #pragma unroll
        for (int x = 0; x < EARLY; x++) if (TILE % R == 0 || r0 + R * x < TILE) add(r0 + R * x, 0, early[x]);
        const int rows = min(TILE, hi - base);
        #pragma unroll 8
        for (int r = r0 + R * EARLY; r < rows; r += R) {
          #pragma unroll
          for (int n = 0; n < NV; n++) if (NV == 1 || c0 + 32 * n < CV) add(r, n, value(base + r, c0 + 32 * n));
        }
      }
      __syncwarp();
    }
  };
  // Two loops of their own: a question at every load would keep loads from being begun together.
  const int64_t steps = k_strides[0] | k_strides[1] | k_strides[2] | v_strides[0] | v_strides[1] | v_strides[2];
  if (k_strides[3] == 1 && v_strides[3] == 1 && (steps | (int64_t)k / 2 | (int64_t)v / 2) % 8 == 0) run((char*)0);
  else run((int*)0);
  for (int g = 0; g < N; g++) {
    for (int o = 2; o < 32; o <<= 1) l[g] += __shfl_xor_sync(0xffffffffu, l[g], o);
    if (lane == 0) { sm[w][g] = m[g]; sl[w][g] = l[g]; }
  }
  for (int r = 0; r < R; r++) {
    if (CV >= 32 || lane / CV == r) for (int n = 0; n < NV; n++) {
      const int c = c0 + 32 * n;
      if (c < CV) for (int g = 0; g < N; g++) for (int e = 0; e < 8; e++) {
        float* to = &sa[w][g][c * 8 + e];
        *to = r ? *to + acc[g][n][e] : acc[g][n][e];
      }
    }
    __syncwarp();
  }
  __syncthreads();
  for (int i = threadIdx.x; i < N * DV; i += W * 32) {
    const int g = i / DV, d = i % DV, v = t * N + g;
    float most = NONE, sum = 0.f, a = 0.f;
    for (int x = 0; x < W; x++) most = fmaxf(most, sm[x][g]);
    if (SINKS) most = fmaxf(most, float(sinks[h * G + v % G]) * 1.4426950408889634f);
    for (int x = 0; x < W; x++) { const float f = exp2f(sm[x][g] - most); sum += sl[x][g] * f; a += sa[x][g][d] * f; }
    if (SINKS) sum += exp2f(float(sinks[h * G + v % G]) * 1.4426950408889634f - most);
    WRITE
  }
"""

_WHOLE = "out[(((int64_t)b * HK * G + h * G + v % G) * C + v / G) * DV + d] = X(a / sum);"
_PART = r"""
    const int64_t o = ((int64_t)(b * HK + h) * C * G + v) * S + s;
    part[o * DV + d] = a;
    if (d == 0) { peaks[o * 2] = most; peaks[o * 2 + 1] = sum; }
"""

_JOIN = r"""
  PARTS
  const int v = blockIdx.x % (C * G), h = blockIdx.x / (C * G) % HK, b = blockIdx.x / (C * G * HK);
  const int64_t o = (int64_t)blockIdx.x * S;
  float most = -1e30f;
  for (int s = 0; s < S; s++) most = fmaxf(most, peaks[(o + s) * 2]);
  if (SINKS) most = fmaxf(most, float(sinks[h * G + v % G]) * 1.4426950408889634f);
  float sum = 0.f;
  if (SINKS) sum = exp2f(float(sinks[h * G + v % G]) * 1.4426950408889634f - most);
  for (int s = 0; s < S; s++) sum += peaks[(o + s) * 2 + 1] * exp2f(peaks[(o + s) * 2] - most);
  for (int d = threadIdx.x; d < DV; d += blockDim.x) {
    float a = 0.f;
    for (int s = 0; s < S; s++) a += part[(o + s) * DV + d] * exp2f(peaks[(o + s) * 2] - most);
    out[(((int64_t)b * HK * G + h * G + v % G) * C + v / G) * DV + d] = X(a / sum);
  }
"""


Kernel = Callable[..., list[mx.array]]


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for."""

    dtype: mx.Dtype
    width: int
    """Of a query and a key."""
    value_width: int
    heads: int
    """Of keys and values."""
    group: int
    """Heads of queries for each of these."""
    queries: int
    """Of each row."""
    window: int = 0
    """How many places a query looks back, itself included; 0: to the beginning."""
    sinks: bool = False

    @property
    def together(self) -> int:
        """How many heads and queries one block computes: a divisor of all there are."""
        wanted = self.queries * self.group
        most = min(MOST_TOGETHER, MOST_WIDTH // self.value_width, MOST_WIDTH // self.width)
        return max(n for n in range(1, most + 1) if wanted % n == 0)

    @cached_property
    def blocks_per_row(self) -> int:
        return self.heads * self.queries * self.group // self.together

    @property
    def fits(self) -> bool:
        """Whether the kernel is made for this."""
        return (
            self.dtype in (mx.bfloat16, mx.float16)
            and 1 <= self.queries <= MOST_QUERIES
            and all(width % PIECE == 0 and 0 < width <= MOST_WIDTH // 2 for width in (self.width, self.value_width))
        )


def parts_of(shape: Shape, rows: int, longest: int) -> int:
    """Into how many parts rows are cut: so many, and no more, that the GPU is busy to the end."""
    read = min(longest, shape.window + shape.queries - 1) if shape.window else longest
    most = max(1, min(MOST_PARTS, read // SHORTEST_PART))
    blocks = rows * shape.blocks_per_row
    return max(range(1, most + 1), key=lambda parts: (min(_busy(blocks, parts), BUSY), -parts))


def _busy(blocks: int, parts: int) -> float:
    """How much of the GPU computes, on average, where so many blocks are cut into parts that take equally long."""
    small = blocks * parts if parts > 1 else blocks * WARPS // WARPS_OF_PARTS
    return small / (WAVE * -(-small // WAVE))


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    lengths: mx.array,
    *,
    shape: Shape,
    scale: float,
    longest: int,
    sinks: mx.array | None = None,
    parts: int | None = None,
) -> mx.array:
    """The last `shape.queries` tokens of rows that have so many, each looking at its own row up to itself."""
    rows = queries.shape[0]
    parts = parts or parts_of(shape, rows, longest)
    inputs, sinking = [queries, keys, values, lengths, _scalar(scale)], [] if sinks is None else [sinks]
    launch = _launch(shape, rows, parts)
    if parts == 1:
        (out,) = launch.attend(inputs=inputs + sinking)
        return out
    count = _count(parts)
    part, peaks = launch.attend(inputs=[*inputs, count])
    (out,) = launch.join(inputs=[part, peaks, *sinking, count])
    return out


@dataclass(frozen=True)
class _Launch:
    """Kernels with all that they are told besides their inputs."""

    attend: Kernel
    join: Kernel


@lru_cache(maxsize=MOST_LAUNCHES)
def _launch(shape: Shape, rows: int, parts: int) -> _Launch:
    """Made once for all layers and steps: what it takes to say counts in a step that has hundreds of kernels."""
    warps = WARPS if parts == 1 else WARPS_OF_PARTS
    constants: list[tuple[str, Any]] = [
        ("X", shape.dtype),
        ("D", shape.width),
        ("DV", shape.value_width),
        ("HK", shape.heads),
        ("G", shape.group),
        ("C", shape.queries),
        ("N", shape.together),
        ("T", shape.queries * shape.group // shape.together),
        ("W", warps),
        ("WINDOW", shape.window),
    ]
    asked = shape.heads * shape.group * shape.queries
    whole: dict[str, Any] = {
        "output_shapes": [(rows, shape.heads * shape.group, shape.queries, shape.value_width)],
        "output_dtypes": [shape.dtype],
    }
    cut: dict[str, Any] = {
        "output_shapes": [(rows * asked * parts * shape.value_width,), (rows * asked * parts * 2,)],
        "output_dtypes": [mx.float32, mx.float32],
    }
    attend = partial(
        _kernel("part", False) if parts > 1 else _kernel("whole", shape.sinks),
        template=constants,
        grid=(rows * shape.blocks_per_row * parts * warps * 32, 1, 1),
        threadgroup=(warps * 32, 1, 1),
        **(cut if parts > 1 else whole),
    )
    join = partial(
        _kernel("join", shape.sinks),
        template=constants,
        grid=(rows * asked * 128, 1, 1),
        threadgroup=(128, 1, 1),
        **whole,
    )
    return _Launch(attend, join)


@memoize
def _scalar(value: float) -> mx.array:
    return mx.array([value], mx.float32)


@memoize
def _count(parts: int) -> mx.array:
    """A number that is no constant: rows grow, and nobody shall wait for a compiler then."""
    return mx.array([parts], mx.int32)


@memoize
def _kernel(kind: str, with_sinks: bool) -> Kernel:
    """Names of what is not there would not compile, so each form has its own source."""
    read = ["part", "peaks"] if kind == "join" else ["q", "k", "v", "lengths", "scale"]
    written = ["part", "peaks"] if kind == "part" else ["out"]
    source = _JOIN if kind == "join" else _ATTEND.replace("WRITE", _PART if kind == "part" else _WHOLE)
    if with_sinks:
        source = source.replace("SINKS", "true")
    else:
        source = "\n".join(line for line in source.splitlines() if "SINKS" not in line)
    source = source.replace("PARTS", "constexpr int S = 1;" if kind == "whole" else "const int S = parts[0];")
    names = [*read, *(["sinks"] if with_sinks else []), *([] if kind == "whole" else ["parts"])]
    name = f"chorus_{kind}{'_sinks' if with_sinks else ''}"
    return cast(Kernel, mx.fast.cuda_kernel(name, names, written, source, ensure_row_contiguous=kind == "join"))
