"""Decode attention on CUDA: every row reads its own keys and values, as far as it has any.

MLX's fused kernels for one query take no array as a mask, so that a batch of unequal rows is computed in several steps
over the width of the longest row: on an H200 34 ms for 32 rows of 4,096 tokens in 32 layers, and 6 with this kernel.

A block has four warps, each of which takes 32 keys at a time. Four lanes share a key, 16 bytes each, so that a score
takes two exchanges between lanes; then lanes stand side by side over the width of a value. What the heads of a group
and the queries of a row ask for is computed together, as far as registers go: they read the same keys. Long rows are
cut into parts, which a second kernel joins. Keys and values that lie otherwise than a cache lays them are read one by
one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as memoize
from functools import cached_property, lru_cache, partial
from typing import Any, cast

import mlx.core as mx

WARPS = 4
PIECE = 8
"""Numbers in 16 bytes of half precision, which are read at once."""
MOST_TOGETHER = 8
"""Heads and queries that one block computes."""
MOST_QUERIES = 16
MOST_WIDTH = 2048
"""Numbers of all outputs of a block: four warps of them fit into the 48 KiB that every block may have."""
SHORTEST_PART = 1024
"""To join parts is another kernel: on an H200 shorter ones gain nothing by it."""
MOST_PARTS = 16
MOST_LAUNCHES = 1024
MOST_BLOCKS = 2048
"""More of them wait for each other."""

_ATTEND = r"""
  constexpr int CK = D / 8, CV = DV / 8, NK = (CK + 3) / 4, NV = (CV + 31) / 32, R = CV < 32 ? 32 / CV : 1;
  constexpr float NONE = -1e30f;
  PARTS
  const int s = blockIdx.x % S, t = blockIdx.x / S % T, h = blockIdx.x / (S * T) % HK, b = blockIdx.x / (S * T * HK);
  const int lane = threadIdx.x & 31, w = threadIdx.x >> 5, four = lane & 3, group = lane >> 2;
  __shared__ float qs[N][D];
  __shared__ float ps[W][32][N];
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
  const bool k_whole = k_strides[3] == 1 && (k_strides[0] | k_strides[1] | k_strides[2] | (int64_t)k / 2) % 8 == 0;
  const bool v_whole = v_strides[3] == 1 && (v_strides[0] | v_strides[1] | v_strides[2] | (int64_t)v / 2) % 8 == 0;
  float m[N], l[N], acc[N][NV][8];
  for (int g = 0; g < N; g++) {
    m[g] = NONE; l[g] = 0.f;
    for (int n = 0; n < NV; n++) for (int e = 0; e < 8; e++) acc[g][n][e] = 0.f;
  }
  union Piece { uint4 all; X one[8]; };
  auto read = [](const X* from, bool whole, int64_t step, int c) {
    Piece x;
    if (whole) x.all = *(const uint4*)(from + c * 8);
    else for (int e = 0; e < 8; e++) x.one[e] = from[(c * 8 + e) * step];
    return x;
  };
  for (int base = lo + w * 32; base < hi; base += W * 32) {
    float dot[N][4];
    #pragma unroll
    for (int g = 0; g < N; g++) for (int u = 0; u < 4; u++) dot[g][u] = 0.f;
    #pragma unroll
    for (int i = 0; i < NK; i++) {
      const int c = four + 4 * i;
      if (c < CK) {
        Piece x[4];
        #pragma unroll
        for (int u = 0; u < 4; u++) {
          const int64_t j = min(base + group + 8 * u, hi - 1);
          x[u] = read(kp + j * k_strides[2], k_whole, k_strides[3], c);
        }
        #pragma unroll
        for (int g = 0; g < N; g++) {
          float a[8];
          *(float4*)a = *(const float4*)&qs[g][c * 8]; *(float4*)(a + 4) = *(const float4*)&qs[g][c * 8 + 4];
          #pragma unroll
          for (int u = 0; u < 4; u++) for (int e = 0; e < 8; e++) dot[g][u] += a[e] * float(x[u].one[e]);
        }
      }
    }
    #pragma unroll
    for (int g = 0; g < N; g++) {
      const int last = before + (t * N + g) / G;
      float most = m[g];
      #pragma unroll
      for (int u = 0; u < 4; u++) {
        dot[g][u] += __shfl_xor_sync(0xffffffffu, dot[g][u], 1);
        dot[g][u] += __shfl_xor_sync(0xffffffffu, dot[g][u], 2);
        const int j = base + group + 8 * u;
        if (j >= hi || j > last || (WINDOW && j <= last - WINDOW)) dot[g][u] = 2 * NONE;
        most = fmaxf(most, dot[g][u]);
      }
      #pragma unroll
      for (int o = 4; o < 32; o <<= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, o));
      const float f = exp2f(m[g] - most);
      m[g] = most; l[g] *= f;
      #pragma unroll
      for (int n = 0; n < NV; n++) for (int e = 0; e < 8; e++) acc[g][n][e] *= f;
      #pragma unroll
      for (int u = 0; u < 4; u++) {
        const float p = dot[g][u] > NONE ? exp2f(dot[g][u] - most) : 0.f;
        l[g] += p;
        if (four == u) ps[w][group + 8 * u][g] = p;
      }
    }
    __syncwarp();
    const int rows = min(32, hi - base);
    if (lane < R * CV || CV >= 32) {
      #pragma unroll 8
      for (int r = CV < 32 ? lane / CV : 0; r < rows; r += R) {
        #pragma unroll
        for (int n = 0; n < NV; n++) {
          const int c = CV < 32 ? lane % CV : lane + 32 * n;
          if (c < CV) {
            const Piece x = read(vp + (int64_t)(base + r) * v_strides[2], v_whole, v_strides[3], c);
            #pragma unroll
            for (int g = 0; g < N; g++) {
              const float p = ps[w][r][g];
              #pragma unroll
              for (int e = 0; e < 8; e++) acc[g][n][e] += p * float(x.one[e]);
            }
          }
        }
      }
    }
    __syncwarp();
  }
  for (int g = 0; g < N; g++) {
    for (int o = 4; o < 32; o <<= 1) l[g] += __shfl_xor_sync(0xffffffffu, l[g], o);
    if (lane == 0) { sm[w][g] = m[g]; sl[w][g] = l[g]; }
  }
  for (int r = 0; r < R; r++) {
    if (CV >= 32 || lane / CV == r) for (int n = 0; n < NV; n++) {
      const int c = CV < 32 ? lane % CV : lane + 32 * n;
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
    """Into how many parts rows are cut."""
    return max(1, min(MOST_PARTS, MOST_BLOCKS // (rows * shape.blocks_per_row), longest // SHORTEST_PART))


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
    constants: list[tuple[str, Any]] = [
        ("X", shape.dtype),
        ("D", shape.width),
        ("DV", shape.value_width),
        ("HK", shape.heads),
        ("G", shape.group),
        ("C", shape.queries),
        ("N", shape.together),
        ("T", shape.queries * shape.group // shape.together),
        ("W", WARPS),
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
        grid=(rows * shape.blocks_per_row * parts * WARPS * 32, 1, 1),
        threadgroup=(WARPS * 32, 1, 1),
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
