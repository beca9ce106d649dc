"""How each kind of part that a tensor rule names is divided: which changes make a rank's share of it.

Nothing is changed here; `divide.apply` does that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from chorus.models.architectures import Heads, Inner, SummedBlock
from chorus.planning.split import SplitError
from chorus.rank.tensor import cuts, modules
from chorus.rank.tensor.cuts import Cut
from chorus.rank.tensor.shares import Range, apportion, head_ranges


@dataclass(frozen=True)
class RankShare:
    """Which rank a model is divided for, among which."""

    rank: int
    weights: tuple[int, ...]
    group: mx.distributed.Group

    @property
    def adds_biases(self) -> bool:
        """A bias behind a sum is added by one rank only."""
        return self.rank == 0


@dataclass(frozen=True)
class Slice:
    """The parameter becomes this part of itself."""

    path: str
    cut: Cut


@dataclass(frozen=True)
class Keep:
    """The parameter stays whole."""

    path: str


@dataclass(frozen=True)
class Discard:
    """The parameter belongs to another rank."""

    path: str


@dataclass(frozen=True)
class Become:
    """The module gets a class in front of its own."""

    path: str
    form: type
    constants: Mapping[str, Any]


@dataclass(frozen=True)
class Count:
    """The module's attribute says how many it holds."""

    path: str
    attribute: str
    value: int


Change = Slice | Keep | Discard | Become | Count


def block_changes(block: SummedBlock, layer: nn.Module, path: str, share: RankShare) -> Iterator[Change]:
    """What makes a rank's share of one block of a layer; `path` is the layer's."""
    module: nn.Module = layer[block.at]
    path = f"{path}.{block.at}"
    changes = [change for part in block.parts for change in _part_changes(part, module, path, share)]
    _refuse_unknown(module, path, block.whole, changes)
    yield from changes
    yield Become(path, modules.Summed, {"group": share.group})


def _part_changes(part: Heads | Inner, block: nn.Module, path: str, share: RankShare) -> Iterator[Change]:
    if isinstance(part, Heads):
        yield from _heads_changes(part, block, path, share)
        return
    inner = block.get(part.at) if part.at else block
    if inner is not None and part.out_of in inner:
        yield from _inner_changes(part, inner, f"{path}.{part.at}" if part.at else path, share)


def head_sizes(heads: Heads, block: nn.Module) -> tuple[int, int]:
    """How many key/value groups an attention has, and how many heads each of them."""
    count = int(getattr(block, heads.heads))
    groups = int(getattr(block, heads.groups)) if heads.groups else count
    return groups, count // groups


def _heads_changes(part: Heads, block: nn.Module, path: str, share: RankShare) -> Iterator[Change]:
    groups, per_group = head_sizes(part, block)
    heads = groups * per_group
    start, stop = head_ranges(groups, per_group, share.weights)[share.rank]
    own_groups = (start // per_group, -(-stop // per_group))
    yield Count(path, part.heads, stop - start)
    if part.groups:
        yield Count(path, part.groups, own_groups[1] - own_groups[0])
    for name in part.ratios:
        if hasattr(block, name):
            yield Count(path, name, (stop - start) // (own_groups[1] - own_groups[0]))
    for name in _present(block, part.queries):
        yield from _rows(f"{path}.{name}", block[name], [_times((start, stop), block[name], heads)])
    for name in _present(block, part.shared):
        yield from _rows(f"{path}.{name}", block[name], [_times(own_groups, block[name], groups)])
    for name in _present(block, part.fused):
        size = cuts.matrix_rows(block[name]) // (heads + 2 * groups)
        runs = [(start, stop), _moved(own_groups, heads), _moved(own_groups, heads + groups)]
        yield from _rows(f"{path}.{name}", block[name], [(a * size, b * size) for a, b in runs])
    for name in _present(block, part.stacked):
        yield from _slices(f"{path}.{name}", block[name], cuts.stack_cuts(block[name], [(start, stop)]))
    for name in _present(block, part.entries):
        yield Slice(f"{path}.{name}", Cut(0, ((start, stop),)))
    for names, run, count in (
        (part.query_norms, (start, stop), heads),
        (part.shared_norms, own_groups, groups),
    ):
        for name in _present(block, names):
            yield from _norm(f"{path}.{name}", block[name], run, count, share)
    size = cuts.matrix_columns(block[part.output]) // heads
    yield from _columns(f"{path}.{part.output}", block[part.output], (start * size, stop * size), share)


def _inner_changes(part: Inner, inner: nn.Module, path: str, share: RankShare) -> Iterator[Change]:
    last = inner[part.out_of]
    width = cuts.matrix_columns(last)
    start, stop = apportion(width, share.weights, _unit(last, width, len(share.weights)))[share.rank]
    for name in _present(inner, part.into):
        yield from _rows(f"{path}.{name}", inner[name], [(start, stop)])
    for name in _present(inner, part.fused):
        yield from _rows(f"{path}.{name}", inner[name], [(start, stop), (width + start, width + stop)])
    yield from _columns(f"{path}.{part.out_of}", last, (start, stop), share)


def vocabulary_changes(path: str, module: nn.Module, form: type, share: RankShare) -> Iterator[Change]:
    rows = tuple(apportion(cuts.matrix_rows(module), share.weights))
    yield from _rows(path, module, [rows[share.rank]])
    yield Become(path, form, {"group": share.group, "rows": rows})


def _unit(last: nn.Module, width: int, ranks: int) -> int:
    """Columns of an inner dimension that should stay together: a quantization group if there are enough of them."""
    preferred = cuts.column_unit(last) if "scales" in last else 16
    return next(unit for unit in (preferred, 8, 1) if width // unit >= ranks or unit == 1)


def _present(module: nn.Module, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in module]


def _times(run: Range, module: nn.Module, count: int) -> Range:
    size = cuts.matrix_rows(module) // count
    return run[0] * size, run[1] * size


def _moved(run: Range, by: int) -> Range:
    return run[0] + by, run[1] + by


def _slices(path: str, module: nn.Module, found: Mapping[str, Cut]) -> Iterator[Change]:
    for name, cut in found.items():
        yield Slice(f"{path}.{name}", cut)
    if "global_scale" in module:
        yield Keep(f"{path}.global_scale")


def _rows(path: str, module: nn.Module, ranges: Sequence[Range]) -> Iterator[Change]:
    yield from _slices(path, module, cuts.row_cuts(module, ranges))


def _columns(path: str, module: nn.Module, run: Range, share: RankShare) -> Iterator[Change]:
    columns = cuts.column_cuts(module, run)
    yield from _slices(path, module, columns.cuts)
    if "bias" in module:
        yield Keep(f"{path}.bias") if share.adds_biases else Discard(f"{path}.bias")
    if any(columns.foreign):
        yield Become(path, modules.Padded, {"foreign": columns.foreign})


def _norm(path: str, norm: nn.Module, run: Range, count: int, share: RankShare) -> Iterator[Change]:
    width = int(norm["weight"].shape[0])
    size = width // count
    yield Slice(f"{path}.weight", Cut(0, ((run[0] * size, run[1] * size),)))
    yield Become(path, modules.WideNorm, {"group": share.group, "width": width})


def _refuse_unknown(block: nn.Module, path: str, whole: Sequence[str], changes: Sequence[Change]) -> None:
    """A parameter that no rule speaks of would be used whole where its neighbours are slices."""
    known = {change.path for change in changes if isinstance(change, Slice | Keep | Discard)}
    for name, _ in tree_flatten(block.parameters()):
        if f"{path}.{name}" not in known and name.partition(".")[0] not in whole:
            raise SplitError(f"no rule divides {path}.{name}: use --parallel pipeline")
