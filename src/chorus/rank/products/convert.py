"""Puts the kernels in place of a model's quantized layers, a few at a time: MLX's copy goes as the kernel's comes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from chorus.platform.freed_buffers import give_back_freed
from chorus.rank.products import kernels
from chorus.rank.products.kernels import Kernel, Matrix
from chorus.rank.products.layers import (
    PACKED_FORMS,
    PackedEmbedding,
    PackedExperts,
    PackedLinear,
    PackedMlp,
    PackedMlps,
    PackedSummedLinear,
    shared_by,
)
from chorus.rank.products.mlps import EXPERT, Mlp, recognise
from chorus.rank.products.packing import pack
from chorus.rank.products.shared import foreign_columns, likely_together, sizes_of
from chorus.rank.upstream import weights as upstream
from chorus.rank.upstream.forms import converted, innermost, put_behind

log = logging.getLogger("chorus.rank")

Children = Mapping[str, Any]
Place = tuple[Any, Any]
"""A dictionary or a list, and where in it a module is."""


def pack_products(model: nn.Module, *, tied_head: bool, progress: Callable[[int], object] = lambda read: None) -> int:
    """Give every quantized layer of the model to the kernels; answers the bytes that they hold.

    `tied_head` says whether the embedding is multiplied with too. `progress` is told of the bytes of MLX's arrays that
    have been read, again and again.
    """
    converter = _Converter(_doubles_as_head(model) if tied_head else None, progress)
    # Not the layers themselves: whoever holds them holds MLX's arrays.
    for module in [module for _, module in model.named_modules() if not upstream.has_plain_form(module)]:
        converter.convert(module)
    if converter.unheld:
        log.info("%s cannot be held as integers with scales: those layers are unpacked to float32", converter.unheld)
    give_back_freed()
    return converter.held


class _Converter:
    def __init__(self, head: nn.Module | None, progress: Callable[[int], object]) -> None:
        self._head = head
        self._progress = progress
        self.held = 0
        self.unheld = ""
        """The kind of quantization that the kernels cannot hold, if any was met."""

    def convert(self, module: nn.Module) -> None:
        """Give the module's own layers to the kernels."""
        for name in _routers(module):
            # Rounded activations could choose other experts, and as a part of MLX's graph it needs no crossing.
            self._unpack((module, name))
        linears, experts = _children(module, PackedLinear), _children(module, PackedExperts)
        sizes = {name: sizes_of(child) for name, child in linears.items()}
        mlp = recognise(module, sizes)
        if mlp and self._as_one(module, linears, mlp):
            return
        mlp = recognise(module, {name: sizes_of(child) for name, child in experts.items()}, EXPERT)
        if mlp and self._experts_as_one(module, experts, mlp):
            return
        for names in likely_together(sizes, ends=not _children(module, PackedSummedLinear)):
            self._share([(module, name) for name in names])
        for place in _places(module):
            self._alone(place)

    def _as_one(self, module: nn.Module, linears: Children, mlp: Mlp) -> bool:
        before, after = foreign_columns(linears[mlp.last])
        if (before or after) and sizes_of(linears[mlp.inner[0]]).gives != sizes_of(linears[mlp.last]).takes:
            return False  # gate and what it opens in one matrix: there is no end to add the foreign rows at
        read, last = self._matrices(linears[mlp.last])
        inner = [self._matrices(linears[name]) for name in mlp.inner]
        if not last or not all(found for _, found in inner):
            return False
        filled = [found[0].with_empty_rows(before, after) for _, found in inner]
        kernel = kernels.mlp(mlp.between.build, filled, last[0])
        for name in linears:
            module.pop(name)
        put_behind(module, PackedMlp)
        vars(module)["kernel"] = self._hold(kernel, read + sum(read for read, _ in inner))
        return True

    def _experts_as_one(self, module: nn.Module, experts: Children, mlp: Mlp) -> bool:
        if any(foreign_columns(child) != (0, 0) for child in experts.values()):
            return False
        found = {name: self._matrices(child) for name, child in experts.items()}
        if not all(matrices for _, matrices in found.values()):
            return False
        made = [
            kernels.mlp(mlp.between.build, [found[name][1][expert] for name in mlp.inner], last)
            for expert, last in enumerate(found[mlp.last][1])
        ]
        for name in experts:
            module.pop(name)
        put_behind(module, PackedMlps)
        vars(module)["experts"] = made
        for kernel in made:
            self._hold(kernel, sum(read for read, _ in found.values()) // len(made))
        return True

    def _share(self, places: Sequence[Place]) -> None:
        found = []
        for holder, key in places:
            read, matrices = self._matrices(holder[key])
            if matrices:
                found.append((holder, key, read, matrices[0]))
            else:
                self._unpack((holder, key))
        if not found:
            return
        kernel = kernels.linears([matrix for *_, matrix in found])
        self._hold(kernel, sum(read for _, _, read, _ in found))
        shared = shared_by(kernel)
        for number, (holder, key, _, _) in enumerate(found):
            made = upstream.blank(converted(type(holder[key]), PACKED_FORMS))
            vars(made).update(shared=shared, place=number)
            holder[key] = made

    def _alone(self, place: Place) -> None:
        holder, key = place
        child = holder[key]
        form = _packed_form(child)
        if form is None:
            self._unpack(place)
            return
        if form is PackedLinear:
            self._share([place])
            return
        if form is PackedEmbedding and child is not self._head:
            return
        read, matrices = self._matrices(child)
        if not matrices:
            self._unpack(place)
        elif form is PackedEmbedding:
            child.__class__ = converted(type(child), PACKED_FORMS)
            vars(child)["head"] = self._hold(kernels.linears(matrices), 0)
        elif form is PackedSummedLinear:
            (matrix,) = matrices
            made = upstream.blank(converted(type(child), PACKED_FORMS))
            kernel = self._hold(kernels.linears([Matrix(matrix.packed)]), read)
            vars(made).update(shared=shared_by(kernel), place=0, group=child.group)
            if matrix.bias is not None:
                made.bias = mx.array(matrix.bias)
            holder[key] = made
        else:
            made = upstream.blank(converted(type(child), PACKED_FORMS))
            vars(made)["experts"] = [self._hold(kernels.linears([m]), read // len(matrices)) for m in matrices]
            holder[key] = made

    def _matrices(self, child: Any) -> tuple[int, list[Matrix]]:
        """What a layer multiplies with, read now, and how many bytes that were; none where it cannot be held."""
        arrays = {name: array for name, array in child.items() if isinstance(array, mx.array)}
        mx.eval(list(arrays.values()))
        plain = {name: _plain(array) for name, array in arrays.items()}
        several = arrays["weight"].ndim == 3
        count = len(plain["weight"]) if several else 1
        found = []
        for number in range(count):
            own = {name: array[number] if several and array.ndim else array for name, array in plain.items()}
            packed = pack(
                own["weight"],
                own["scales"],
                own.get("biases"),
                bits=child.bits,
                block=child.group_size,
                mode=child.mode,
                tensor_scale=own.get("global_scale"),
            )
            if packed is None:
                self.unheld = child.mode
                return 0, []
            found.append(Matrix(packed, own.get("bias")))
        return sum(array.nbytes for array in arrays.values()), found

    def _unpack(self, place: Place) -> None:
        holder, key = place
        holder[key] = upstream.unpacked(holder[key], mx.float32)

    def _hold(self, kernel: Kernel, read: int) -> Kernel:
        self.held += kernel.nbytes
        mx.clear_cache()
        self._progress(read)
        return kernel


def _doubles_as_head(model: nn.Module) -> nn.Module | None:
    """The embedding that is multiplied with where there is no head: the one of all tokens, not of positions, and not
    the wide one from which each layer takes a part.
    """
    embeddings = [module for _, module in model.named_modules() if _packed_form(module) is PackedEmbedding]
    return max(embeddings, key=lambda one: (sizes_of(one).gives, -sizes_of(one).takes), default=None)


def _routers(module: nn.Module) -> list[str]:
    """The layers by which a module that holds experts chooses among them."""
    held = (child for value in module.values() if isinstance(value, nn.Module) for child in value.values())
    counts = {len(child.weight) for child in held if _packed_form(child) is PackedExperts}
    return [name for name, child in _children(module, PackedLinear).items() if sizes_of(child).gives in counts]


def _children(module: nn.Module, form: type) -> dict[str, Any]:
    return {name: child for name, child in module.items() if _packed_form(child) is form}


def _places(module: nn.Module) -> Iterator[Place]:
    """Where the module itself still has quantized layers."""
    for name, child in list(module.items()):
        if upstream.has_plain_form(child):
            yield module, name
        elif isinstance(child, list):
            yield from ((child, number) for number, entry in enumerate(child) if upstream.has_plain_form(entry))


def _packed_form(child: Any) -> type | None:
    form = converted(type(child), PACKED_FORMS) if isinstance(child, nn.Module) else None
    return innermost(form) if form else None


def _plain(array: mx.array) -> Any:
    """For numpy, which has no bfloat16; what is no float is left as it is."""
    return np.array(array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array, copy=False)
