"""A run of layers of any mlx-lm decoder, with the model's own forward left as it is.

The layer list and the cache list keep their length, so every index table inside a model stays valid. Layers that live
elsewhere become pass-throughs; their caches become ghosts. The first local layer takes its input from the wire, and
the forward ends where the last local one has spoken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from chorus.planning.split import SplitError
from chorus.rank.cache import caches
from chorus.rank.cache.packed import Packing
from chorus.rank.parameters import Key, Placeholders, Witness, hide_contents, keep_only, modules_in
from chorus.rank.pipeline import rules, special
from chorus.rank.pipeline.rules import Args, CacheMap, Call, Flow, Kwargs, Span
from chorus.rank.upstream import decoders

Cache = list[Any]

_FINAL_NORMS = ("norm", "final_layernorm", "ln_f", "norm_f", "final_norm", "final_layer_norm", "embedding_norm")
_LAYER_KEYS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_transformer_layers")

special.register_all()


class _Cut(Exception):
    """Ends a forward early, carrying what was computed so far."""

    def __init__(self, arrays: list[mx.array]) -> None:
        self.arrays = arrays


class Stage:
    """Layers [first, last) of a model. Changes the model in place: what other stages hold leaves its parameters.

    Make it after the model's `sanitize` has run (some models decide only there whether head and embedding are tied),
    before or after quantizing, before or after loading weights.
    """

    def __init__(self, model: nn.Module, first: int, last: int, packing: Packing | None = None) -> None:
        holders = _layer_lists(model)
        layers = [layer for _, found in holders for layer in found]
        if not 0 <= first < last <= len(layers):
            raise SplitError(f"layers {first} to {last - 1} are not a part of this model's 0 to {len(layers) - 1}")
        self.model = model
        self.packing = packing
        """How keys and values are packed; None: they are not."""
        self.first, self.last, self.layers = first, last, len(layers)
        self.is_first, self.is_last = first == 0, last == len(layers)
        self._span = Span(model, holders[0][0], layers, first, last)
        self.rule = rules.of_decoder(self._span.decoder)
        whole = self.is_first and self.is_last
        if not whole and self.rule.check is not None:
            arguments = {"model_type": _name(self._span.decoder), **vars(self._span.decoder.args)}
            self.rule.check(arguments, [edge for edge in (first, last) if 0 < edge < len(layers)])
        self._flow: Flow = self.rule.flow(self._span)
        self._call: Call | None = None
        self._plan_caches(caches.fresh(model, packing))
        self._placeholders = Placeholders()
        if not whole:
            self._give_away_far_parts()
        self._seat_edges()

    @property
    def final_norm(self) -> nn.Module | None:
        """What follows the last layer, for those who want hidden states; None where no known name is found."""
        found = (getattr(self._span.decoder, name, None) for name in _FINAL_NORMS)
        return next((norm for norm in found if isinstance(norm, nn.Module)), None)

    @property
    def names(self) -> list[str]:
        """By which this architecture is found in tables: of the modules that define its decoder, its own first."""
        return decoders.defining_modules(self._span.decoder)

    @property
    def batches(self) -> bool:
        """Whether sequences of unequal length may share a batch; if not, run them one at a time."""
        return self.rule.batches and caches.batchable(self.new_cache())

    @property
    def every_stage_reads_tokens(self) -> bool:
        """Whether the tokens themselves are wanted beyond the first stage, by a cache that belongs to the embedding."""
        return bool(self._unwritten)

    @cached_property
    def number_type(self) -> mx.Dtype | None:
        """What these layers compute in: the type of most of their numbers, packed ones aside. Known once the weights
        are; None where all are packed.
        """
        sizes: Counter[mx.Dtype] = Counter()
        for _, array in tree_flatten(self.model.parameters()):
            if mx.issubdtype(array.dtype, mx.floating):
                sizes[array.dtype] += array.size
        return sizes.most_common(1)[0][0] if sizes else None

    def new_cache(self) -> Cache:
        made = caches.fresh(self.model, self.packing)
        for place, ghost in self._ghost_at.items():
            made[place] = made[ghost]
        return made

    def forward(
        self, tokens: mx.array, cache: Cache, received: Sequence[mx.array] | None = None, *, logits: bool = True
    ) -> list[mx.array]:
        """Run `tokens` (B, N) through these layers.

        Returns what the next stage must receive; on the last stage the logits (B, vocabulary) of the last position,
        or with `logits=False` the hidden states, norm and head left out.
        """
        if (received is None) != self.is_first:
            raise ValueError(f"layers {self.first} to {self.last - 1} {_EXPECTS[self.is_first]}")
        batch, count = tokens.shape
        received = self._in_own_type(received or ())
        call = Call(cache, batch, count, received, logits)
        if received:
            self._open_rows(call)
            self._placeholders.match(received[0].dtype)
        self._flow.begin(call)
        self._call = call
        try:
            outputs = [_last_logits(self.model(tokens, cache=cache))]
            if not logits:
                # A model that could not be cut short: its head stays uncomputed as long as nobody asks for it.
                outputs = [mx.depends(mx.zeros((batch, count, 0)), caches.arrays(cache))]
        except _Cut as cut:
            outputs = cut.arrays
        finally:
            self._call = None
        for place in self._ghosts:
            caches.advance_ghost(cache[place], batch, count)
        # Nothing else needs these arrays: unless they hang on the outputs, their graph would grow for ever.
        loose = caches.arrays([cache[place] for place in (*self._ghosts, *self._unread)])
        return mx.depends(outputs, loose) if loose else outputs

    def _plan_caches(self, fresh: Cache) -> None:
        """Which caches are real here, which are ghosts, and which mirror one that an earlier stage writes."""
        writes, reads = self._cache_maps(len(fresh))
        # A cache that no layer writes belongs to the embedding, which sees the tokens on every stage.
        self._unwritten = set(range(len(fresh))) - _union(writes)
        owned = _union(writes[self.first : self.last]) | self._unwritten
        self._incoming = sorted(_union(writes[: self.first]) & _union(reads[self.first :]))
        self._outgoing = sorted(_union(writes[: self.last]) & _union(reads[self.last :]))
        mirrored = set(self._incoming) & _union(reads[self.first : self.last])
        self._mirrors = [sorted(set(written) & mirrored) for written in writes[: self.first]]
        self._ghost_at = _one_of_each_kind(fresh, set(range(len(fresh))) - owned - mirrored)
        self._ghosts = sorted(set(self._ghost_at.values()))
        self._unread = [] if self.is_first else sorted(self._unwritten)

    def _cache_maps(self, entries: int) -> tuple[CacheMap, CacheMap]:
        describe_writes, describe_reads = self.rule.writes, self.rule.reads
        reads: CacheMap = describe_reads(self._span) if describe_reads else [()] * self.layers
        if self.is_first and self.is_last:
            return [tuple(range(entries))], reads
        if describe_writes:
            return describe_writes(self._span), reads
        if entries == self.layers:
            return [(index,) for index in range(self.layers)], reads
        raise SplitError(
            f"{_name(self._span.decoder)} has {entries} caches for {self.layers} layers and nobody said which is whose:"
            " run it on one rank"
        )

    def _give_away_far_parts(self) -> None:
        span, beside = self._span, {id(layer) for layer in self._span.layers}
        for index, layer in enumerate(span.layers):
            _seat(layer, _Probed, self, index)
        probe = caches.fresh(self.model, self.packing)
        for place in set(range(len(probe))) - self._unwritten:
            caches.advance_ghost(probe[place], 1, 1)
        self._call = Call(probe, 1, 1)
        with Witness(self.model, beside) as self._witness:
            self.model(mx.zeros((1, 1), dtype=mx.int32), cache=probe)
        needed: set[Key] = set()
        if self.is_first:
            needed |= self._witness.before
        if self.is_last:
            needed |= self._witness.after
        keep_only(self.model, needed.__contains__, beside, self._placeholders)
        for index, layer in enumerate(span.layers):
            _unseat(layer)
            if not self.first <= index < self.last:
                hide_contents(layer, self._placeholders)
                _seat(layer, _Far, self, index)

    def _seat_edges(self) -> None:
        if not self.rule.ends_at_last_layer:
            return
        layers, flow = self._span.layers, self._flow
        for index in range(self.first, self.last):
            edge = index == self.last - 1 or (index == self.first and not self.is_first)
            if edge or flow.adjusts_every_layer or self._starts_early(index):
                _seat(layers[index], _Local, self, index)

    def _starts_early(self, index: int) -> bool:
        """Nothing hides the building of a stage's graph: let the device begin meanwhile."""
        return index == self.first and not (self.is_first and self.is_last)

    def _probe(self, index: int, args: Args, kwargs: Kwargs) -> Any:
        assert self._call is not None
        self._witness.passed_layers = index == self.layers - 1
        return self._flow.skip(self._call, index, args, kwargs)

    def _pass_by(self, index: int, args: Args, kwargs: Kwargs) -> Any:
        call = self._call
        assert call is not None
        for place in self._mirrors[index]:
            entry = call.cache[place]
            call.fetched[place] = (entry.offset, *entry.update_and_fetch(*call.rows[place]))
        return self._flow.skip(call, index, args, kwargs)

    def _run(self, layer: Any, index: int, args: Args, kwargs: Kwargs) -> Any:
        call, flow = self._call, self._flow
        assert call is not None
        if index == self.first and not self.is_first:
            args, kwargs = flow.enter(call, args, kwargs)
        if flow.adjusts_every_layer:
            args, kwargs = flow.adjust(call, args, kwargs)
        result = layer(*args, **kwargs)
        if self._starts_early(index):
            mx.async_eval(result)
        if index != self.last - 1 or not flow.ends(call, args, kwargs):
            return result
        if not self.is_last:
            raise _Cut(flow.leave(call, result, kwargs) + self._new_rows(call))
        if not call.logits:
            raise _Cut(flow.leave(call, result, kwargs)[:1])
        return flow.last_position(result) if call.count > 1 else result

    def _in_own_type(self, received: Sequence[mx.array]) -> Sequence[mx.array]:
        """What came from a stage that computes in another type, in ours: else the wider of the two would win in every
        product here, and in the caches.
        """
        own = self.number_type if received else None
        if own is None or received[0].dtype == own:
            return received
        wide = self._flow.wide
        return [
            array.astype(own) if place not in wide and mx.issubdtype(array.dtype, mx.floating) else array
            for place, array in enumerate(received)
        ]

    def _open_rows(self, call: Call) -> None:
        """Received behind the hidden states: keys and values for caches that this stage or a later one mirrors."""
        pairs = iter(call.received[self._flow.wires :])
        call.rows = dict(zip(self._incoming, zip(pairs, pairs, strict=True), strict=True))

    def _new_rows(self, call: Call) -> list[mx.array]:
        rows = (call.rows.get(place) or caches.newest(call.cache[place], call.count) for place in self._outgoing)
        return [array for pair in rows for array in pair]


class _Seat:
    """Base of the classes that stand in front of a layer's own class, so that the layer keeps its parameters' names,
    its attributes and its type.
    """

    _stage: Stage
    _index: int


class _Far(_Seat):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._stage._pass_by(self._index, args, kwargs)


class _Probed(_Seat):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._stage._probe(self._index, args, kwargs)


class _Local(_Seat):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._stage._run(super().__call__, self._index, args, kwargs)  # type: ignore[misc]


def _last_logits(result: Any) -> mx.array:
    # Some models return their cache too.
    logits = result[0] if isinstance(result, tuple) else result
    return logits[:, -1]


def layer_count(model: nn.Module) -> int:
    return len(model.layers)


def check_boundaries(config: Mapping[str, Any], boundaries: Sequence[int]) -> None:
    """Raise SplitError when this model cannot be split so; `boundaries` are the first layers of all stages but the
    first. Needs no weights.
    """
    text = config.get("text_config") or {}
    names = [decoders.architecture_name(part) for part in (config, text) if part.get("model_type")]
    if not config.get("model_file"):  # else the folder brings its own
        decoders.architecture_module(names[0])
    total = config_layers(config)
    if list(boundaries) != sorted(set(boundaries)) or any(not 0 < b < (total or b + 1) for b in boundaries):
        raise SplitError(f"stages starting at layers {list(boundaries)} do not divide {total or 'the'} layers in order")
    check = rules.by_name(*reversed(names)).check
    if check is not None and boundaries:
        check({**config, **text}, boundaries)


def config_layers(config: Mapping[str, Any]) -> int | None:
    """The number of layers a configuration gives, None where it uses a name of its own for it."""
    for part in (config.get("text_config") or {}, config):
        if pattern := part.get("hybrid_override_pattern"):
            return len(pattern)
        for key in _LAYER_KEYS:
            if isinstance(part.get(key), int):
                return int(part[key])
    return None


def _layer_lists(model: nn.Module) -> list[tuple[nn.Module, list[nn.Module]]]:
    """The lists in the module tree that make up `model.layers`, in order, each with the module that holds it."""
    wanted = {id(layer): index for index, layer in enumerate(model.layers)}
    found: dict[int, tuple[nn.Module, list[nn.Module]]] = {}

    def search(module: nn.Module) -> None:
        for value in module.values():
            if isinstance(value, list) and value and id(value[0]) in wanted:
                found[wanted[id(value[0])]] = (module, value)
            else:
                for child in modules_in(value):
                    search(child)

    search(model)
    lists = [found[start] for start in sorted(found)]
    if sum(len(layers) for _, layers in lists) != len(wanted):
        raise SplitError(f"{type(model).__module__} keeps its layers where they cannot be found")
    return lists


def _one_of_each_kind(fresh: Cache, far: set[int]) -> dict[int, int]:
    """For each far cache the place of the one ghost that stands for all of its kind."""
    first_of: dict[Any, int] = {}
    return {place: first_of.setdefault(caches.kind(fresh[place]), place) for place in sorted(far)}


def _seat(layer: nn.Module, seat: type[_Seat], stage: Stage, index: int) -> None:
    layer.__class__ = _seated(seat, type(layer))
    vars(layer).update(_stage=stage, _index=index)


def _unseat(layer: nn.Module) -> None:
    layer.__class__ = type(layer).__bases__[1]


def _seated(seat: type[_Seat], layer: type) -> type:
    return type(layer.__name__, (seat, layer), {"__module__": layer.__module__})


def _union(places: Sequence[Sequence[int]]) -> set[int]:
    return {place for group in places for place in group}


def _name(decoder: nn.Module) -> str:
    return type(decoder).__module__.rpartition(".")[2]


_EXPECTS = {True: "are the first stage and receive nothing", False: "need what the stage before them sent"}
