"""What the pipeline must know about an architecture that is not plain.

Most decoders need nothing here: their layers hand on one array and own one cache each. A rule is found by the name of
the mlx-lm module (or third-party module) that defines the decoder. `special` has those of mlx-lm; a package names its
own in the table of architectures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from chorus.models.architectures import architecture
from chorus.rank.upstream import decoders

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Arguments = tuple[Args, Kwargs]
CacheMap = list[tuple[int, ...]]


@dataclass(frozen=True)
class Span:
    """The layers of a stage, and the module whose forward runs through all of them."""

    model: nn.Module
    decoder: nn.Module
    layers: Sequence[nn.Module]
    first: int
    last: int


@dataclass
class Call:
    """One forward of a stage: what the model cannot hand to its layers itself."""

    cache: list[Any]
    batch: int
    count: int
    received: Sequence[mx.array] = ()
    logits: bool = True
    rows: dict[int, tuple[mx.array, mx.array]] = field(default_factory=dict)
    """New keys and values of caches that live on an earlier stage and are read here or later."""
    fetched: dict[int, tuple[Any, mx.array, mx.array]] = field(default_factory=dict)
    """For a mirrored cache, the offset before this call and all its keys and values after it."""


class Flow:
    """How hidden states travel from layer to layer: here, one array in and one array out."""

    wires: int = 1
    """How many arrays `leave` sends and `enter` expects."""
    wide: frozenset[int] = frozenset()
    """Those of them that are float32 whatever type the layers compute in."""
    adjusts_every_layer = False
    """Whether `adjust` changes the call of each local layer, not only of the first."""

    def __init__(self, span: Span) -> None:
        self.span = span

    def begin(self, call: Call) -> None:
        """Called before the model's forward."""

    def skip(self, call: Call, index: int, args: Args, kwargs: Kwargs) -> Any:
        """What far layer `index` hands on."""
        return args[0] if args else next(iter(kwargs.values()))

    def enter(self, call: Call, args: Args, kwargs: Kwargs) -> Arguments:
        """The call of the first local layer, with what was received in place of what the model computed."""
        if args:
            return (call.received[0], *args[1:]), kwargs
        return args, {**kwargs, next(iter(kwargs)): call.received[0]}

    def adjust(self, call: Call, args: Args, kwargs: Kwargs) -> Arguments:
        """The call of any local layer, with what the model could not compute on this stage."""
        return args, kwargs

    def ends(self, call: Call, args: Args, kwargs: Kwargs) -> bool:
        """Whether this call of the last layer is the layers' last work in this forward."""
        return True

    def leave(self, call: Call, result: Any, kwargs: Kwargs) -> list[mx.array]:
        """What the last local layer's result puts on the wire."""
        return [result]

    def last_position(self, result: Any) -> Any:
        """Only the last token of the last layer's result: norm and head need no other."""
        return result[:, -1:]


@dataclass(frozen=True)
class PipelineRule:
    """What is particular about an architecture when its layers are divided into stages."""

    flow: type[Flow] = Flow
    writes: Callable[[Span], CacheMap] | None = None
    """The caches that each layer updates, by index; None: layer i updates cache i."""
    reads: Callable[[Span], CacheMap] | None = None
    """The caches of other layers that each layer reads."""
    check: Callable[[Mapping[str, Any], Sequence[int]], None] | None = None
    """Raises SplitError when stages must not begin at these layers; sees the text model's configuration."""
    batches: bool = True
    """False where upstream's own forward is wrong or fails for a batch of unequal lengths."""
    ends_at_last_layer: bool = True
    """False where the model reaches into its layers instead of calling them."""


PLAIN = PipelineRule()
_registry: dict[str, PipelineRule] = {}


def register(rule: PipelineRule, *modules: str) -> None:
    """Use this rule for decoders that are defined in Python modules of these names."""
    for name in modules:
        _registry[name] = rule


def by_name(*names: str) -> PipelineRule:
    """The rule of the first of these names that has one; the plain one where none has."""
    for name in names:
        if place := architecture(name).pipeline:
            rule: PipelineRule = resolve_name(place)
            return rule
        if name in _registry:
            return _registry[name]
    return PLAIN


def of_decoder(decoder: nn.Module) -> PipelineRule:
    return by_name(*decoders.defining_modules(decoder))
