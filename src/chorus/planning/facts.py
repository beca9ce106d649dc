"""What the planner must know about a model, from its config.json and the headers of its weight files alone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from chorus.models.description import context_length, stated_context, text_config, vocabulary
from chorus.models.errors import ModelError
from chorus.models.layer_names import embeds_tokens, is_foreign, is_tied, layer_count, layers_of_names, place_of
from chorus.models.parts import remote_tensors
from chorus.models.resolve import fetch_named, resolve, split_hub_id, stored_model
from chorus.models.tensors import TensorInfo, read_json, tensor_index
from chorus.models.values import Progress
from chorus.planning.cache_sizes import CacheFacts, cache_of_layer
from chorus.platform.accelerator.dtype import DtypePolicy
from chorus.platform.cpu.products import PACK_GROUP, READ_COPIES, SCALE_COPIES, held_bits

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_USUAL_GROUP = 64
_FLOATING = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model", "model_dim", "hidden_dim", "dim")
_TOP_K_KEYS = (
    *("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "top_k_experts"),
    *("num_selected_experts", "moe_router_topk"),
)
_HEAD_KEYS = ("num_attention_heads", "n_heads", "n_head", "num_heads", "num_query_heads")
_GROUP_KEYS = ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "num_attention_groups", "n_head_kv")
_MULTI_LINEAR = re.compile(r"\.(?:embed_q|unembed_out)$")
"""Stacked products of multi-head latent attention, which are in no kernel."""
_EXPERT = re.compile(r"(?<!shared_)experts?\.|switch_mlp\.|switch_glu\.")


@dataclass(frozen=True)
class Weights:
    """Some tensors, counted so that every dtype policy can be applied to them."""

    stored: int = 0
    """Bytes of the tensors left as they are."""
    packed: int = 0
    """The part of these bytes that is quantized numbers and other integers, which no change of dtype touches."""
    floating: int = 0
    """Floating-point numbers, scales and biases of quantized tensors among them."""
    elements: int = 0
    """Numbers once quantized tensors are unpacked; their scales and biases are gone then."""
    held: int = 0
    """Bytes with quantized matrices as a CPU's kernels hold them and everything else in float32."""
    packable: int = 0
    """Numbers of matrices that are not quantized and could be."""
    scales: int = 0
    """Scales of quantized matrices that the kernels hold."""

    def __add__(self, other: Weights) -> Weights:
        return Weights(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def bytes_under(self, policy: DtypePolicy) -> int:
        """Of weights that are multiplied with."""
        if policy.dtype == "stored":
            return self.stored
        size = ITEM_BYTES[policy.dtype]
        if bits := policy.quantize_to:
            return self._quantized_to(bits, SCALE_COPIES)
        if policy.packed:
            return self.held
        return self.elements * size if policy.dequantize else self.packed + self.floating * size

    def read_under(self, policy: DtypePolicy) -> int:
        """What a product with all of them reads: less than the kernels hold."""
        if not policy.packed:
            return self.bytes_under(policy)
        scales = self.packable // PACK_GROUP if policy.quantize_to else self.scales
        return self.bytes_under(policy) - (SCALE_COPIES - READ_COPIES) * scales * ITEM_BYTES["float32"]

    def looked_up_under(self, policy: DtypePolicy) -> int:
        """Of weights whose rows are looked up: quantized ones stay as MLX has them, where products are packed."""
        if bits := policy.quantize_to:
            return self._quantized_to(bits, 1)
        return self.packed + self.floating * ITEM_BYTES[policy.dtype] if policy.packed else self.bytes_under(policy)

    def in_kernels(self, policy: DtypePolicy) -> bool:
        """Whether a CPU's kernels multiply with some of them."""
        return policy.packed and bool(self.packable if policy.quantize_to else self.packed)

    def _quantized_to(self, bits: int, scale_copies: int) -> int:
        """With so many copies of each group's scale, and a shift for each."""
        floats = self.packable // PACK_GROUP * (scale_copies + 1) + self.floating - self.packable
        return self.packed + self.packable * bits // 8 + floats * ITEM_BYTES["float32"]


@dataclass(frozen=True)
class LayerFacts:
    """What one layer holds, keeps and reads."""

    weights: Weights
    cache: CacheFacts
    experts: Weights = Weights()
    """The part of the weights that are routed experts."""
    experts_per_token: int = 1
    expert_count: int = 1

    def read_share(self, tokens: int) -> float:
        """The part of the expert weights that a forward of so many tokens touches."""
        missed = (1 - self.experts_per_token / self.expert_count) ** tokens
        return 1 - missed

    @property
    def active_elements(self) -> float:
        """Numbers that take part in the product for one token."""
        idle = self.experts.elements * (1 - self.experts_per_token / self.expert_count)
        return self.weights.elements - idle


@dataclass(frozen=True)
class ModelFacts:
    """What a plan depends on of a model."""

    name: str
    model_type: str
    layers: tuple[LayerFacts, ...]
    embedding: Weights
    head: Weights
    """What is read after the layers; of a tied head, nothing but what it has besides the embedding."""
    tied: bool
    tokens: Weights
    """The part of the embedding that a tied head uses again."""
    around: Weights
    """Small parts outside the layers, held by every stage."""
    hidden: int
    vocabulary: int
    heads: int
    groups: int
    """Key/value heads: the units of a tensor split."""
    context: int
    """The longest sequence it was made for; a cautious number where its configuration does not say."""
    stored_dtype: str
    quantized: bool
    context_stated: bool = True

    def longest(self, asked: int) -> int:
        """How long sequences may be where this was asked for."""
        return min(asked, self.context) if self.context_stated else asked

    @cached_property
    def total(self) -> Weights:
        return sum((layer.weights for layer in self.layers), self.embedding + self.head + self.around)

    def shrunk_to_bits(self, bits: float) -> ModelFacts:
        """The same model quantized to so many bits per number, scales included; the embedding too."""

        def shrink(weights: Weights) -> Weights:
            packed = int(weights.elements * bits / 8)
            floats = (SCALE_COPIES + 1) * ITEM_BYTES["float32"] - 2 * ITEM_BYTES["bfloat16"]
            groups = weights.elements // _USUAL_GROUP
            return Weights(packed, packed, 0, weights.elements, packed + groups * floats, scales=groups)

        layers = tuple(
            replace(layer, weights=shrink(layer.weights), experts=shrink(layer.experts)) for layer in self.layers
        )
        return replace(self, layers=layers, embedding=shrink(self.embedding), head=shrink(self.head), quantized=True)


def read_facts(path: Path, name: str | None = None) -> ModelFacts:
    """The facts of the model in a folder. Reads config.json and the headers of the weight files, no weights."""
    return facts_of(read_json(path / "config.json"), tensor_index(path), name or path.name)


def find_facts(name: str, progress: Callable[[Progress], None] | None = None) -> ModelFacts:
    """The facts of the model that `name` means. Of a hub model that is not in the cache, only headers are fetched."""
    if Path(name).expanduser().is_dir() or split_hub_id(name) is None:
        model = resolve(name, progress=progress)
        return read_facts(model.path, model.id)
    try:
        model = resolve(name, progress=progress, offline=True)
    except ModelError:
        model = resolve(name, progress=progress, weights=False)
        return facts_of(read_json(model.path / "config.json"), remote_tensors(model), model.id)
    return read_facts(model.path, model.id)


def named_facts(name: str) -> ModelFacts:
    """The same by a name that a client said, never of a folder or file of that name. What the hub alone has is
    described, and its headers are read; nothing else is fetched.
    """
    try:
        model = stored_model(name)
    except ModelError:
        if split_hub_id(name) is None:
            raise
        model = fetch_named(name, weights=False)
        return facts_of(read_json(model.path / "config.json"), remote_tensors(model), model.id)
    return read_facts(model.path, model.id)


def facts_of(config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], name: str) -> ModelFacts:
    try:
        return _facts_of(config, tensors, name)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A stranger's file: any key may hold anything.
        why = f"has a value of another kind than is usual there ({error}); fetch the model again"
        raise ModelError(f"config.json of {name} {why}.") from error


def _facts_of(config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], name: str) -> ModelFacts:
    text = {**text_config(config), "outer_type": config.get("model_type")}
    own = {key: info for key, info in tensors.items() if not is_foreign(key)}
    counted = {key: _count(key, info, own, config) for key, info in own.items()}
    indices = layers_of_names(own)
    count = layer_count(config, indices)
    if not count:
        raise ModelError(f"{name} has no tensors named like layers (layers.0., h.0., blocks.0.): it cannot be planned.")
    members: list[dict[str, TensorInfo]] = [{} for _ in range(count)]
    outside: dict[str, TensorInfo] = {}
    for key, info in own.items():
        index = indices.get(key)
        if index is None:
            outside[key] = info
        elif index < count:
            members[index][key] = info
    tied = is_tied(config, own)
    places = {key: place_of(key, len(info.shape)) for key, info in outside.items()}
    heads = int(_scalar(_first(text, _HEAD_KEYS)) or 1)
    return ModelFacts(
        name=name,
        model_type=str(config.get("model_type")),
        layers=tuple(_layer(index, layer, counted, text) for index, layer in enumerate(members)),
        embedding=_sum(counted[key] for key in outside if places[key] == "before"),
        head=_sum(counted[key] for key in outside if places[key] == "after" and not (tied and _stale_head(key))),
        tied=tied,
        tokens=_sum(counted[key] for key in outside if embeds_tokens(key)),
        around=_sum(counted[key] for key in outside if places[key] == "around"),
        hidden=int(_first(text, _HIDDEN_KEYS) or 0),
        vocabulary=vocabulary(config) or int(_first(text, ("num_vocab", "padded_vocab_size")) or 0),
        heads=heads,
        groups=int(_scalar(_first(text, _GROUP_KEYS)) or heads),
        context=context_length(config),
        stored_dtype=_main_dtype(own.values()),
        quantized=any(count.packed for count in counted.values()),
        context_stated=stated_context(config) is not None,
    )


def _layer(
    index: int, tensors: Mapping[str, TensorInfo], counted: Mapping[str, Weights], config: Mapping[str, Any]
) -> LayerFacts:
    inside = {re.split(rf"\.{index}\.|\.\d+\.", f".{key}", maxsplit=1)[1]: info.shape for key, info in tensors.items()}
    routed = [key for key in tensors if _EXPERT.search(key)]
    count = _expert_count(routed, tensors)
    return LayerFacts(
        weights=_sum(counted[key] for key in tensors),
        cache=cache_of_layer(index, inside, config),
        experts=_sum(counted[key] for key in routed),
        experts_per_token=min(count, int(_scalar(_first(_with_ffn(config), _TOP_K_KEYS)) or count)),
        expert_count=count,
    )


def _stale_head(key: str) -> bool:
    """A checkpoint may store a copy that a tied model drops."""
    return "lm_head" in key


def _with_ffn(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("ffn_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def _expert_count(routed: Iterable[str], tensors: Mapping[str, TensorInfo]) -> int:
    """Stacked experts are the first dimension of their tensors; separate ones are numbered."""
    numbered = [int(match[1]) for key in routed if (match := re.search(r"experts\.(\d+)\.", key))]
    stacked = [info.shape[0] for key in routed if len((info := tensors[key]).shape) == 3]
    return max([*(number + 1 for number in numbered), *stacked], default=1)


def _count(key: str, info: TensorInfo, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> Weights:
    numbers, nbytes = math.prod(info.shape), info.nbytes
    wide = numbers * ITEM_BYTES["float32"]
    module, _, part = key.rpartition(".")
    scales = tensors.get(f"{module}.scales")
    if scales is not None and part in ("weight", "scales", "biases"):
        settings = _quantization(module, config)
        weight, elements = tensors[f"{module}.weight"], math.prod(scales.shape) * _group_size(settings)
        width = _kernel_bits(module, 8 * weight.nbytes // elements, settings)
        if part == "weight":
            return Weights(nbytes, nbytes, 0, elements, elements * (width or 8 * ITEM_BYTES["float32"]) // 8)
        floats = numbers if info.dtype in _FLOATING else 0
        if part == "scales" and width:
            return Weights(nbytes, 0 if floats else nbytes, floats, 0, SCALE_COPIES * wide, scales=numbers)
        return Weights(nbytes, 0 if floats else nbytes, floats, 0, wide if width else 0)
    if part.endswith("_blocks"):  # mxfp4: two 4-bit numbers to a byte
        return Weights(nbytes, nbytes, 0, 2 * nbytes, 2 * nbytes * (held_bits(4, "mxfp4") or 0) // 8)
    if part.endswith("_scales") and f"{key.removesuffix('_scales')}_blocks" in tensors:
        return Weights(nbytes, nbytes, 0, 0, SCALE_COPIES * wide, scales=numbers)
    packable = numbers if len(info.shape) > 1 and info.shape[-1] % PACK_GROUP == 0 else 0
    if info.dtype.startswith("F8_E4M3"):
        return Weights(2 * numbers, 0, numbers, numbers, wide, packable)  # unpacked to bfloat16 as it is loaded
    if info.dtype in _FLOATING:
        return Weights(nbytes, 0, numbers, numbers, wide, packable)
    return Weights(nbytes, nbytes, 0, 0, nbytes)


def _quantization(module: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """How a module was quantized: as its configuration says for all, or for this one."""
    settings = config.get("quantization") or config.get("quantization_config") or {}
    own = settings.get(module)
    return {**settings, **own} if isinstance(own, dict) else settings


def _group_size(settings: Mapping[str, Any]) -> int:
    return int(settings.get("group_size") or _USUAL_GROUP)


def _kernel_bits(module: str, bits: int, settings: Mapping[str, Any]) -> int | None:
    """How wide a CPU's kernels hold the weights of a module; None: they are unpacked to float32."""
    return None if _MULTI_LINEAR.search(module) else held_bits(bits, str(settings.get("mode") or "affine"))


def _main_dtype(tensors: Iterable[TensorInfo]) -> str:
    sizes: dict[str, int] = {}
    for info in tensors:
        if info.dtype in _DTYPE_NAMES:
            sizes[info.dtype] = sizes.get(info.dtype, 0) + info.nbytes
    return _DTYPE_NAMES[max(sizes, key=lambda name: sizes[name])] if sizes else "bfloat16"


def _sum(parts: Iterable[Weights]) -> Weights:
    return sum(parts, Weights())


def _first(config: Mapping[str, Any], keys: Iterable[str]) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _scalar(value: Any) -> Any:
    """A number as it is; the largest, where a configuration has one per layer."""
    return max(value) if isinstance(value, list) and value else value
