"""The architectures of mlx-lm that are not plain, and what is particular about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from chorus.planning.split import SplitError
from chorus.rank.pipeline.rules import (
    Args,
    Arguments,
    CacheMap,
    Call,
    Flow,
    Kwargs,
    PipelineRule,
    Span,
    by_name,
    register,
)
from chorus.rank.upstream import decoders


def register_all() -> None:
    register(PipelineRule(writes=_nothing_else_cached(lambda layer: layer.self_attn is not None)), "nemotron-nas")
    register(PipelineRule(writes=_nothing_else_cached(lambda layer: layer.block_type in "M*")), "nemotron_h")
    register(
        PipelineRule(writes=lambda span: [(index + 1,) for index in range(len(span.layers))]), "longcat_flash_ngram"
    )
    register(PipelineRule(flow=RunningPair), "rwkv7")
    register(PipelineRule(flow=SharedProjections), "hunyuan")
    register(PipelineRule(flow=EmbeddingBeside), "talkie")
    register(PipelineRule(flow=ResidualBlocks), "kimi_k3")
    register(PipelineRule(flow=FusedNorm), "muse_spark")
    register(PipelineRule(flow=Streams), "deepseek_v41")
    register(PipelineRule(writes=_own_first(_afm7_owners), reads=_borrowed(_afm7_owners)), "afm7")
    register(
        PipelineRule(flow=Gemma3n, writes=_own_first(_gemma3n_owners), reads=_borrowed(_gemma3n_owners)), "gemma3n"
    )
    register(
        PipelineRule(flow=Gemma4, writes=_own_first(_gemma4_owners), reads=_borrowed(_gemma4_owners)),
        "gemma4_text",
        "gemma4",
    )
    register(PipelineRule(flow=GroupedMask), "gemma2")
    register(PipelineRule(flow=Looped, check=_refuse_loops), "nanbeige")
    register(PipelineRule(ends_at_last_layer=False, check=_refuse_loops), "iquestloopcoder")
    for name in _WRONG_IN_BATCHES:
        register(replace(by_name(name), batches=False), name)


_WRONG_IN_BATCHES = {
    "afm7": "the layers that reuse keys take the position of every row from the longest one",
    "gpt_bigcode": "makes its positions with numpy from one offset",
    "minimax_m3_vl": "chooses blocks of keys as if every row were as long as the longest one",
    "phi3small": "adds a mask of a batch to scores of another shape",
}


class RunningPair(Flow):
    """layer(x, first_values, cache) -> (x, first_values): the values of layer 0 reach every later layer."""

    wires = 2

    def skip(self, call: Call, index: int, args: Args, kwargs: Kwargs) -> Any:
        return args[0], args[1]

    def enter(self, call: Call, args: Args, kwargs: Kwargs) -> Arguments:
        return (*call.received[:2], *args[2:]), kwargs

    def leave(self, call: Call, result: Any, kwargs: Kwargs) -> list[mx.array]:
        return list(result)

    def last_position(self, result: Any) -> Any:
        return result[0][:, -1:], result[1]


class SharedProjections(Flow):
    """layer(x, mask, cache, kv) -> (x, kv): groups of layers use the projections of their first one."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.wires = 3 if self._inside_group(span.first) else 1

    def skip(self, call: Call, index: int, args: Args, kwargs: Kwargs) -> Any:
        return args[0], None

    def enter(self, call: Call, args: Args, kwargs: Kwargs) -> Arguments:
        shared = tuple(call.received[1:3]) if self.wires == 3 else None
        return (call.received[0], args[1], args[2], shared), kwargs

    def leave(self, call: Call, result: Any, kwargs: Kwargs) -> list[mx.array]:
        hidden, shared = result
        return [hidden, *shared] if self._inside_group(self.span.last) else [hidden]

    def last_position(self, result: Any) -> Any:
        return result[0][:, -1:], None

    def _inside_group(self, layer: int) -> bool:
        args = self.span.decoder.args
        return bool(args.use_cla) and layer % args.cla_share_factor != 0


class EmbeddingBeside(Flow):
    """layer(embedded, x, mask, cache) -> x: every layer adds the token embeddings once more."""

    wires = 2
    adjusts_every_layer = True

    def begin(self, call: Call) -> None:
        self._embedded = call.received[1] if call.received else None

    def skip(self, call: Call, index: int, args: Args, kwargs: Kwargs) -> Any:
        return args[1]

    def enter(self, call: Call, args: Args, kwargs: Kwargs) -> Arguments:
        return (args[0], call.received[0], *args[2:]), kwargs

    def adjust(self, call: Call, args: Args, kwargs: Kwargs) -> Arguments:
        if self._embedded is None:
            self._embedded = args[0]
        return (self._embedded, *args[1:]), kwargs

    def leave(self, call: Call, result: Any, kwargs: Kwargs) -> list[mx.array]:
        assert self._embedded is not None
        return [result, self._embedded]


class ResidualBlocks(Flow):
    """layer(x, mask=, cache=, blocks=) -> (x, blocks): later layers look back at sums kept every few layers."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.wires = 2 if span.decoder.use_attn_res else 1

    def skip(self, call: Call, index: int, args: Args, kwargs: Kwargs) -> Any:
        return args[0], kwargs["blocks"]

    def enter(self, call: Call, args: Args, kwargs: Kwargs) -> Arguments:
        blocks = kwargs["blocks"]
        if blocks is not None:
            for raw in call.received[1]:
                blocks.append(raw)
        return (call.received[0],), kwargs

    def leave(self, call: Call, result: Any, kwargs: Kwargs) -> list[mx.array]:
        hidden, blocks = result
        return [hidden] if blocks is None else [hidden, blocks.raw]

    def last_position(self, result: Any) -> Any:
        hidden, blocks = result
        if blocks is not None:
            blocks.raw, blocks.inv_rms = blocks.raw[:, :, -1:], blocks.inv_rms[:, :, -1:]
        return hidden[:, -1:], blocks


class FusedNorm(Flow):
    """layer(x, mask=, cache=, attn_input=, next_norm=) -> (x, attn_input): a layer also norms for the next one."""

    def skip(self, call: Call, index: int, args: Args, kwargs: Kwargs) -> Any:
        return args[0], None

    def enter(self, call: Call, args: Args, kwargs: Kwargs) -> Arguments:
        hidden = call.received[0]
        norm = self.span.layers[self.span.first].input_layernorm
        fused = decoders.module_of(self.span.decoder).pre_norm(hidden, norm, dtype=norm.weight.dtype)
        return (hidden,), {**kwargs, "attn_input": fused}

    def leave(self, call: Call, result: Any, kwargs: Kwargs) -> list[mx.array]:
        return [result[0]]

    def last_position(self, result: Any) -> Any:
        return result[0][:, -1:], None


class Streams(Flow):
    """layer(streams, pre_mix, cache=, shared=, ...) -> (streams, pre_mix): layers also share compressed keys, their
    index and what was chosen from it, in a dictionary that lives for one forward.
    """

    wide = frozenset({1})

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self._module = decoders.module_of(span.decoder)
        self._args = span.decoder.args
        self._shared_in = self._module._crossing(self._args, span.first) if span.first else {}
        self._shared_out = self._module._crossing(self._args, span.last)
        self.wires = 2 + len(self._shared_in)

    def skip(self, call: Call, index: int, args: Args, kwargs: Kwargs) -> Any:
        return args[0], args[1]

    def enter(self, call: Call, args: Args, kwargs: Kwargs) -> Arguments:
        for (key, source), part in zip(self._shared_in.items(), call.received[2:], strict=True):
            kwargs["shared"][key] = self._opened(key, source, part, kwargs)
        return tuple(call.received[:2]), kwargs

    def leave(self, call: Call, result: Any, kwargs: Kwargs) -> list[mx.array]:
        shared, start = kwargs["shared"], kwargs["start_pos"]
        parts = [
            self._packed(key, source, shared.get(key), start, start + call.count, call)
            for key, source in self._shared_out.items()
        ]
        return [*result, *parts]

    def last_position(self, result: Any) -> Any:
        streams, pre_mix = result
        return streams[:, -1:], pre_mix[:, -1:]

    def _packed(self, key: str, source: int, part: mx.array | None, start: int, end: int, call: Call) -> mx.array:
        if part is None:
            return mx.zeros((call.batch, 0, 1) if self._grows(key) else (call.batch, call.count, 0))
        if self._grows(key):
            # The next stage keeps the earlier entries itself.
            new = self._module._entries(self._args, source, end) - self._module._entries(self._args, source, start)
            return part[:, part.shape[1] - new :]
        return part[..., :: self._args.candidate_block_size] if key == "candidates" else part

    def _opened(self, key: str, source: int, part: mx.array, kwargs: Kwargs) -> mx.array | None:
        if self._grows(key):
            # The first local layer does not write this field of its cache, or nothing would have to be sent.
            cache = kwargs["cache"]
            if part.shape[1]:
                kept = getattr(cache, key)
                setattr(cache, key, part if kept is None else mx.concatenate([kept, part], axis=1))
            return getattr(cache, key)
        if part.shape[-1] == 0:
            return None
        if key != "candidates":
            return part
        end = kwargs["start_pos"] + part.shape[1]
        return mx.repeat(part, self._args.candidate_block_size, axis=-1)[
            ..., : self._module._index_keys(self._args, source, end)
        ]

    def _grows(self, key: str) -> bool:
        return key in self._module._CACHE_FIELDS


class PerLayerInputs(Flow):
    """Every layer gets an input made from the tokens at the start. It travels, since its tables are huge."""

    projection: str
    """The decoder's method that makes these inputs, (B, N, layers, width)."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self._project: Callable[..., mx.array] = getattr(span.decoder, self.projection)
        self._present = bool(span.decoder.hidden_size_per_layer_input)
        self._inputs: mx.array | None = None
        if self._present:
            vars(span.decoder)[self.projection] = self._projected
            self.wires = 2

    def begin(self, call: Call) -> None:
        self._inputs = None
        if self._present and call.received:
            rest = call.received[1]
            batch, count, _, width = rest.shape
            missing = mx.full((batch, count, self.span.first, width), float("nan"), dtype=rest.dtype)
            self._inputs = mx.concatenate([missing, rest], axis=2)

    def leave(self, call: Call, result: Any, kwargs: Kwargs) -> list[mx.array]:
        hidden = super().leave(call, result, kwargs)
        return hidden if self._inputs is None else [*hidden, self._inputs[:, :, self.span.last :]]

    def _projected(self, *args: Any) -> mx.array:
        if self._inputs is None:
            self._inputs = self._project(*args)
        return self._inputs


class Gemma3n(PerLayerInputs):
    """layer(x, mask, cache, per_layer_input, offset=) -> x, with x (copies, B, N, D)."""

    projection = "project_per_layer_inputs"

    def last_position(self, result: Any) -> Any:
        return result[:, :, -1:]


class Gemma4(PerLayerInputs):
    """layer(x, mask, cache, shared_kv=, offset=, ...) -> (x, keys and values, offset), used by later layers."""

    projection = "_project_per_layer_inputs"

    def skip(self, call: Call, index: int, args: Args, kwargs: Kwargs) -> Any:
        if index not in call.fetched:
            return args[0], None, None
        offset, keys, values = call.fetched[index]
        return args[0], (keys, values), mx.array(offset)

    def leave(self, call: Call, result: Any, kwargs: Kwargs) -> list[mx.array]:
        return super().leave(call, result[0], kwargs)

    def last_position(self, result: Any) -> Any:
        hidden, *rest = result
        return hidden[:, -1:], *rest


class GroupedMask(Flow):
    """layer(x, mask, cache) -> x, with scores that have one more axis than a batch's mask: upstream fails there."""

    adjusts_every_layer = True

    def adjust(self, call: Call, args: Args, kwargs: Kwargs) -> Arguments:
        hidden, mask, cache = args
        grouped = self.span.layers[self.span.first].self_attn.repeats > 1
        if grouped and isinstance(mask, mx.array) and mask.ndim == 4:
            mask = mask[:, :, None]
        return (hidden, mask, cache), kwargs


class Looped(Flow):
    """The layers run several times, each time with caches of their own."""

    def ends(self, call: Call, args: Args, kwargs: Kwargs) -> bool:
        # The caches of the last round come last.
        place = len(call.cache) - len(self.span.layers) + self.span.last - 1
        return args[2] is call.cache[place]


def _nothing_else_cached(has_cache: Callable[[Any], bool]) -> Callable[[Span], CacheMap]:
    """Caches are numbered over those layers alone that have one."""

    def writes(span: Span) -> CacheMap:
        numbers = iter(range(len(span.layers)))
        return [(next(numbers),) if has_cache(layer) else () for layer in span.layers]

    return writes


def _own_first(owners: Callable[[Span], list[int]]) -> Callable[[Span], CacheMap]:
    return lambda span: [(owner,) if owner == layer else () for layer, owner in enumerate(owners(span))]


def _borrowed(owners: Callable[[Span], list[int]]) -> Callable[[Span], CacheMap]:
    return lambda span: [(owner,) if owner != layer else () for layer, owner in enumerate(owners(span))]


def _afm7_owners(span: Span) -> list[int]:
    own = len(span.decoder.layers)
    return [*range(own), *[own - 1] * (len(span.layers) - own)]


def _gemma3n_owners(span: Span) -> list[int]:
    return list(span.decoder.layer_idx_to_cache_idx)


def _gemma4_owners(span: Span) -> list[int]:
    return list(span.decoder.previous_kvs)


def _refuse_loops(config: Mapping[str, Any], boundaries: Sequence[int]) -> None:
    loops = len(config.get("loop_loss_weights") or ()) + 1
    if loops == 1:
        loops = (
            config.get("loop_num", 2) if config.get("model_type") == "iquestloopcoder" else config.get("num_loops", 1)
        )
    if loops > 1:
        raise SplitError(
            f"{config.get('model_type')} runs all its layers {loops} times for each token, so stages would have to be"
            " passed as often: run it on one rank"
        )
