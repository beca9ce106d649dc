"""The vocabulary of rules: what a layer is made of, and how each kind of part is divided.

A part says which changes make a rank's share of it; nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from chorus.rank.tensor.rules import cuts, modules
from chorus.rank.tensor.rules.cuts import Cut
from chorus.rank.tensor.rules.shares import Range, TensorError, apportion, head_ranges


@dataclass(frozen=True)
class Share:
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
class Drop:
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


Change = Slice | Keep | Drop | Become | Count


class Part(Protocol):
    def find(self, block: nn.Module) -> nn.Module | None:
        """The module inside `block` that this part describes; None where the block has none."""

    def divide(self, block: nn.Module, path: str, share: Share) -> Iterator[Change]: ...


@dataclass(frozen=True)
class Heads:
    """Attention. Heads are divided in whole key/value groups; absent members are passed over."""

    queries: tuple[str, ...] = ("q_proj",)
    shared: tuple[str, ...] = ("k_proj", "v_proj")
    """Outputs that a group of heads shares."""
    fused: tuple[str, ...] = ()
    """Queries, keys and values one after the other in one matrix."""
    output: str = "o_proj"
    stacked: tuple[str, ...] = ()
    """A matrix for each head."""
    entries: tuple[str, ...] = ()
    """Arrays with an entry for each head."""
    query_norms: tuple[str, ...] = ()
    """Norms over all queries at once."""
    shared_norms: tuple[str, ...] = ()
    heads: str = "n_heads"
    groups: str | None = "n_kv_heads"
    """None: every head is a group of its own."""
    ratios: tuple[str, ...] = ("repeats", "num_key_value_groups")

    def find(self, block: nn.Module) -> nn.Module | None:
        return block

    def sizes(self, block: nn.Module) -> tuple[int, int]:
        """Key/value groups, and the heads of each."""
        heads = int(getattr(block, self.heads))
        groups = int(getattr(block, self.groups)) if self.groups else heads
        return groups, heads // groups

    def divide(self, block: nn.Module, path: str, share: Share) -> Iterator[Change]:
        groups, per_group = self.sizes(block)
        heads = groups * per_group
        start, stop = head_ranges(groups, per_group, share.weights)[share.rank]
        own_groups = (start // per_group, -(-stop // per_group))
        yield Count(path, self.heads, stop - start)
        if self.groups:
            yield Count(path, self.groups, own_groups[1] - own_groups[0])
        for name in self.ratios:
            if hasattr(block, name):
                yield Count(path, name, (stop - start) // (own_groups[1] - own_groups[0]))
        for name in _present(block, self.queries):
            yield from _rows(f"{path}.{name}", block[name], [_times((start, stop), block[name], heads)])
        for name in _present(block, self.shared):
            yield from _rows(f"{path}.{name}", block[name], [_times(own_groups, block[name], groups)])
        for name in _present(block, self.fused):
            size = cuts.matrix_rows(block[name]) // (heads + 2 * groups)
            runs = [(start, stop), _moved(own_groups, heads), _moved(own_groups, heads + groups)]
            yield from _rows(f"{path}.{name}", block[name], [(a * size, b * size) for a, b in runs])
        for name in _present(block, self.stacked):
            yield from _slices(f"{path}.{name}", block[name], cuts.stack_cuts(block[name], [(start, stop)]))
        for name in _present(block, self.entries):
            yield Slice(f"{path}.{name}", Cut(0, ((start, stop),)))
        for names, run, count in (
            (self.query_norms, (start, stop), heads),
            (self.shared_norms, own_groups, groups),
        ):
            for name in _present(block, names):
                yield from _norm(f"{path}.{name}", block[name], run, count, share)
        size = cuts.matrix_columns(block[self.output]) // heads
        yield from _columns(f"{path}.{self.output}", block[self.output], (start * size, stop * size), share)


@dataclass(frozen=True)
class Inner:
    """An MLP, or experts that are MLPs: divided along the inner dimension."""

    at: str = ""
    """Below the block; empty: the block itself."""
    into: tuple[str, ...] = ("gate_proj", "up_proj")
    fused: tuple[str, ...] = ()
    """Gate and up one after the other in one matrix."""
    out_of: str = "down_proj"

    def find(self, block: nn.Module) -> nn.Module | None:
        inner = block.get(self.at) if self.at else block
        return inner if inner is not None and self.out_of in inner else None

    def divide(self, block: nn.Module, path: str, share: Share) -> Iterator[Change]:
        inner = self.find(block)
        assert inner is not None
        path = f"{path}.{self.at}" if self.at else path
        last = inner[self.out_of]
        width = cuts.matrix_columns(last)
        start, stop = apportion(width, share.weights, _unit(last, width, len(share.weights)))[share.rank]
        for name in _present(inner, self.into):
            yield from _rows(f"{path}.{name}", inner[name], [(start, stop)])
        for name in _present(inner, self.fused):
            yield from _rows(f"{path}.{name}", inner[name], [(start, stop), (width + start, width + stop)])
        yield from _columns(f"{path}.{self.out_of}", last, (start, stop), share)


@dataclass(frozen=True)
class Block:
    """A module of a layer whose output is summed over the ranks, once for all its parts."""

    at: str
    parts: tuple[Part, ...]
    whole: tuple[str, ...] = ()
    """Members that every rank keeps: routers, norms of single heads."""

    def divide(self, layer: nn.Module, path: str, share: Share) -> Iterator[Change]:
        block: nn.Module = layer[self.at]
        path = f"{path}.{self.at}"
        changes = [
            change for part in self.parts if part.find(block) is not None for change in part.divide(block, path, share)
        ]
        _refuse_unknown(block, path, self.whole, changes)
        yield from changes
        yield Become(path, modules.Summed, {"group": share.group})


@dataclass(frozen=True)
class Rule:
    blocks: tuple[Block, ...]
    embedding: str = "embed_tokens"
    """In the module that holds the layers."""
    head: str = "lm_head"
    """Anywhere in the model; where it is missing, the embedding is the head."""

    def attention(self, layer: nn.Module) -> Iterator[tuple[int, int]]:
        """Key/value groups and the heads of each, for every attention in a layer."""
        for block in self.blocks:
            for part in block.parts:
                if isinstance(part, Heads):
                    yield part.sizes(layer[block.at])


def vocabulary_changes(path: str, module: nn.Module, form: type, share: Share) -> Iterator[Change]:
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


def _columns(path: str, module: nn.Module, run: Range, share: Share) -> Iterator[Change]:
    columns = cuts.column_cuts(module, run)
    yield from _slices(path, module, columns.cuts)
    if "bias" in module:
        yield Keep(f"{path}.bias") if share.adds_biases else Drop(f"{path}.bias")
    if any(columns.foreign):
        yield Become(path, modules.Padded, {"foreign": columns.foreign})


def _norm(path: str, norm: nn.Module, run: Range, count: int, share: Share) -> Iterator[Change]:
    width = int(norm["weight"].shape[0])
    size = width // count
    yield Slice(f"{path}.weight", Cut(0, ((run[0] * size, run[1] * size),)))
    yield Become(path, modules.WideNorm, {"group": share.group, "width": width})


def _refuse_unknown(block: nn.Module, path: str, whole: Sequence[str], changes: Sequence[Change]) -> None:
    """A parameter that no rule speaks of would be used whole where its neighbours are slices."""
    known = {change.path for change in changes if isinstance(change, Slice | Keep | Drop)}
    for name, _ in tree_flatten(block.parameters()):
        if f"{path}.{name}" not in known and name.partition(".")[0] not in whole:
            raise TensorError(f"no rule divides {path}.{name}: use --parallel pipeline")
