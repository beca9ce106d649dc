"""A slice of every layer of a model, by weights: 2 of 3 key/value groups here, 1 there.

A rule says which parts of a layer are divided and where the ranks' results are summed; the model's own forward stays
as it is. Architectures without a rule of ours run through mlx-lm's own `shard`, evenly.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from chorus.models.architectures import TensorRule, tensor_rule
from chorus.planning.split import SplitError
from chorus.platform.accelerator import device
from chorus.rank.tensor import modules, shares
from chorus.rank.tensor.cuts import Cut, take
from chorus.rank.tensor.parts import (
    Become,
    Change,
    Count,
    Discard,
    RankShare,
    Slice,
    block_changes,
    head_sizes,
    vocabulary_changes,
)
from chorus.rank.upstream import decoders
from chorus.rank.upstream.forms import become

Read = Callable[[str, mx.array, Cut], mx.array]
"""A parameter's path, the whole of it (not read yet), and the part that is wanted."""

VOCABULARY_PAYS_FROM = 1 << 18
"""Numbers (packed: words) in the head from which reading a part of it saves more than gathering the logits costs."""


@dataclass(frozen=True)
class TensorPlan:
    """Which share of every layer a rank holds."""

    rank: int
    weights: tuple[int, ...]
    """The shares of all ranks: of the key/value groups, and by the same proportions of all the rest."""


def check(config: Mapping[str, Any], ranks: int, weights: Sequence[int] | None = None) -> tuple[int, ...]:
    """The weights that a plan for this many ranks shall have; SplitError where there are none. Needs no files."""
    model = decoders.build(copy.deepcopy(dict(config)))
    if weights is not None:
        _check_weights(weights, ranks)
    rule = rule_of(model)
    if rule is None:
        even = _check_even(model, config, ranks, weights)
        # Nothing is computed: mlx-lm's own division shows on the spot whether every size is a multiple.
        _shard_upstream(model, config, Imagined(0, ranks))
        return even
    sizes = _attention_sizes(model, rule)
    chosen = tuple(weights) if weights is not None else shares.default_weights(*sizes[0], ranks)
    for groups, per_group in sizes:
        shares.head_ranges(groups, per_group, chosen)
    return shares.reduced(chosen)


def shard_model(
    model: nn.Module,
    config: Mapping[str, Any],
    plan: TensorPlan,
    group: mx.distributed.Group,
    *,
    read: Read = lambda path, array, cut: take(array, cut),
) -> None:
    """Leave in `model` this rank's slices only, and the sums that its forward then needs. The ranks of the group must
    build the same forwards in the same order; each gets the whole logits.

    Do it right after lazy loading, before dtypes change: `read` may take the slices straight from the files.
    """
    if (group.rank(), group.size()) != (plan.rank, len(plan.weights)):
        planned = f"{plan.rank} of {len(plan.weights)}"
        raise SplitError(f"the group has rank {group.rank()} of {group.size()} where the plan says {planned}")
    rule = rule_of(model)
    if rule is None:
        _check_even(model, config, group.size(), plan.weights)
        _shard_upstream(model, config, group)
        return
    apply(model, list(divide(model, rule, RankShare(plan.rank, plan.weights, group))), read)


def changes_of(model: nn.Module, config: Mapping[str, Any], plan: TensorPlan, group: Any) -> list[Change]:
    """What `shard_model` would do, for a model whose slices are stored elsewhere. Only shapes are looked at, so that an
    imagined group is as good as a real one.
    """
    rule = rule_of(model)
    if rule is None:
        raise SplitError(
            f"{decoders.architecture_name(config)} is divided by mlx-lm itself, as it loads the whole: "
            "its slices cannot be stored apart; serve it from the original folder"
        )
    return list(divide(model, rule, RankShare(plan.rank, plan.weights, group)))


def divide(model: nn.Module, rule: TensorRule, share: RankShare) -> Iterator[Change]:
    """What must change for a model to become one rank's share of it."""
    path, decoder = _decoder(model)
    for index, layer in enumerate(decoder["layers"]):
        for block in rule.blocks:
            yield from block_changes(block, layer, f"{path}.layers.{index}", share)
    yield from _divide_vocabulary(model, rule, share)


def from_leader(
    array: mx.array, group: mx.distributed.Group, *, after: Sequence[mx.array], leader: int = 0
) -> mx.array:
    """The leader's array on every rank, inside the graph; the others give any of the same shape and dtype.

    `after` is what the forward returned. The leader's array hangs on it anyway; on the others it must be computed first
    too, or their collectives would come in another order.
    """
    own = array if group.rank() == leader else mx.zeros_like(array)
    return mx.distributed.all_sum(mx.depends([own], list(after))[0], group=group)


TRIED_SUMS = 8
TRIED_WIDTH = 2048


def wait_for_peers(group: mx.distributed.Group) -> float:
    """Wait until every rank has come so far; answers the seconds of a small sum between the device and its peers.

    A Mac ends a GPU's work that waits for more than about five seconds, and a rank that has loaded early would wait
    longer for the others: so the first wait is the CPU's alone.
    """
    alone = mx.cpu if device.backend() == "metal" else mx.default_device()
    mx.eval(mx.distributed.all_sum(mx.zeros((1,), stream=alone), group=group, stream=alone))
    values, quickest = mx.zeros((TRIED_WIDTH,)), math.inf
    for _ in range(TRIED_SUMS):
        begin = time.perf_counter()
        mx.eval(mx.distributed.all_sum(values + 1, group=group) * 2)
        quickest = min(quickest, time.perf_counter() - begin)
    return quickest


def _divide_vocabulary(model: nn.Module, rule: TensorRule, share: RankShare) -> Iterator[Change]:
    """Divide the embedding and the head by rows; where there is no head, the embedding is both."""
    path, decoder = _decoder(model)
    embedding = decoder[rule.embedding]
    if embedding["weight"].size < VOCABULARY_PAYS_FROM:
        return
    yield from vocabulary_changes(f"{path}.{rule.embedding}", embedding, modules.SplitEmbedding, share)
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == rule.head:
            yield from vocabulary_changes(name, module, modules.SplitHead, share)


def apply(model: nn.Module, changes: Sequence[Change], read: Read) -> None:
    by_path = dict(model.named_modules())
    for change in changes:
        if isinstance(change, Slice | Discard):
            owner, _, name = change.path.rpartition(".")
            holder = by_path[owner]
            if isinstance(change, Slice):
                holder[name] = read(change.path, holder[name], change.cut)
            else:
                holder.pop(name)
        elif isinstance(change, Count):
            setattr(by_path[change.path], change.attribute, change.value)
        elif isinstance(change, Become):
            become(by_path[change.path], change.form, **change.constants)


def rule_of(model: nn.Module) -> TensorRule | None:
    """The rule for the module that defines the decoder's class, or one of its base classes."""
    return tensor_rule(*decoders.defining_modules(_decoder(model)[1]))


def _decoder(model: nn.Module) -> tuple[str, nn.Module]:
    """The module that holds the list of layers, with its path."""
    first = model.layers[0]
    for path, module in model.named_modules():
        held = module.get("layers")
        if isinstance(held, list) and held and held[0] is first:
            return path, module
    return "", model


def _attention_sizes(model: nn.Module, rule: TensorRule) -> list[tuple[int, int]]:
    """Key/value groups and the heads of each, for every kind of attention that the model has."""
    found = (head_sizes(heads, layer[block.at]) for layer in model.layers for block, heads in rule.attention())
    return list(dict.fromkeys(found))


def _check_weights(weights: Sequence[int], ranks: int) -> None:
    shown = ",".join(map(str, weights))
    if len(weights) != ranks:
        raise SplitError(f"weights {shown} are {len(weights)} for {ranks} ranks: give one for each rank")
    if any(weight < 1 for weight in weights):
        raise SplitError(f"weights {shown} must all be at least 1: leave out a rank that shall hold nothing")


def _check_even(
    model: nn.Module, config: Mapping[str, Any], ranks: int, weights: Sequence[int] | None
) -> tuple[int, ...]:
    name = decoders.architecture_name(config)
    if _upstream_owner(model) is None:
        raise SplitError(f"{name} cannot be divided inside its layers: use --parallel pipeline")
    if weights is not None and len(set(weights)) > 1:
        raise SplitError(
            f"{name} can only be divided evenly, by mlx-lm itself: leave out the weights, or use --parallel pipeline"
        )
    for part in (config, config.get("text_config") or {}):
        keys = ("num_attention_heads",) if "kv_lora_rank" in part else ("num_attention_heads", "num_key_value_heads")
        for key in keys:
            count = part.get(key)
            if isinstance(count, int) and count % ranks:
                raise SplitError(
                    f"{name} can only be divided evenly, and its {key} of {count} is no multiple of {ranks} ranks: "
                    "use --parallel pipeline"
                )
    return (1,) * ranks


@dataclass(frozen=True)
class Imagined:
    """A place in a group that has not been formed."""

    place: int
    ranks: int

    def rank(self) -> int:
        return self.place

    def size(self) -> int:
        return self.ranks


def _shard_upstream(model: nn.Module, config: Mapping[str, Any], group: mx.distributed.Group | Imagined) -> None:
    owner = _upstream_owner(model)
    assert owner is not None
    try:
        owner.shard(group)
    except (ValueError, AssertionError) as error:
        raise SplitError(
            f"{decoders.architecture_name(config)} does not divide evenly by {group.size()} ranks ({error}): "
            "use --parallel pipeline"
        ) from error
    for _, module in model.named_modules():
        if isinstance(module, nn.QuantizedAllToShardedLinear | nn.QuantizedShardedToAllLinear):
            become(module, modules.Grouped, group=group)


def _upstream_owner(model: nn.Module) -> Any:
    """The model, or the text model inside it, that brings mlx-lm's own `shard`."""
    return next((part for part in (model, model.get("language_model")) if hasattr(part, "shard")), None)
