"""Puts the kernels in place of a model's layers, a few at a time: MLX's copy goes as the kernel's comes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from chorus.platform.memory.freed_buffers import give_back_freed
from chorus.rank.products import kernels
from chorus.rank.products.kernels import Kernel, Matrix
from chorus.rank.products.layers import (
    LAID_OUT_FORMS,
    PACKED_FORMS,
    KernelEmbedding,
    KernelExperts,
    KernelHead,
    KernelLinear,
    KernelMlp,
    KernelMlps,
    KernelSummedLinear,
    shared_by,
)
from chorus.rank.products.mlps import EXPERT, Mlp, recognise
from chorus.rank.products.packing import Plain, pack
from chorus.rank.products.shared import foreign_columns, likely_together, sizes_of
from chorus.rank.products.worth import is_plain, worth
from chorus.rank.upstream import weights as upstream
from chorus.rank.upstream.forms import Table, converted, innermost, put_behind

log = logging.getLogger("chorus.rank")

Children = Mapping[str, Any]
Place = tuple[Any, Any]
"""A dictionary or a list, and where in it a module is."""
Progress = Callable[[int], object]
"""Is told of the bytes of MLX's arrays that have been read, again and again."""

_GIVE_BACK_BYTES = 32 << 20
"""Held since the last time that freed memory was given back: what MLX had of them, the allocator keeps until then."""


def _unheard(read: int) -> None:
    """For those who want no progress."""


def pack_products(model: nn.Module, *, tied_head: bool, progress: Progress = _unheard) -> int:
    """Give every quantized layer of the model to the kernels; answers the bytes that they hold.

    `tied_head` says whether the embedding is multiplied with too.
    """
    converter = _Packing(model, tied_head, progress)
    held = converter.convert_all(model)
    if converter.unheld:
        log.info("%s cannot be held as integers with scales: those layers are unpacked to float32", converter.unheld)
    return held


def lay_out_products(model: nn.Module, *, head_only: bool, progress: Progress = _unheard) -> int:
    """Give those plain layers of float32 to the kernels that are worth it; answers the bytes that they hold.

    `head_only` says whether the embedding is multiplied with, and nothing else is done with it: what is laid out for
    products cannot be looked up.
    """
    return _LayingOut(model, head_only, progress).convert_all(model)


class _Converter(ABC):
    """What is the same for quantized and for plain layers."""

    def __init__(self, forms: Table, model: nn.Module, with_head: bool, progress: Progress) -> None:
        self._forms = forms
        self._head = self._embedding_of_all_tokens(model) if with_head else None
        self._progress = progress
        self.held = 0

    @abstractmethod
    def _takes(self, child: Any) -> bool:
        """Whether the layer is of the kind that is looked at here at all."""

    @abstractmethod
    def _worth(self, layers: Sequence[Any]) -> bool:
        """Whether a kernel for these layers is worth its crossing."""

    @abstractmethod
    def _matrices(self, child: Any) -> tuple[int, list[Matrix]]:
        """What a layer multiplies with, read now, and how many bytes that were; none where it cannot be held."""

    @abstractmethod
    def _leave(self, place: Place) -> None:
        """What becomes of a layer that stays MLX's."""

    def convert_all(self, model: nn.Module) -> int:
        # Not the layers themselves: whoever holds them holds MLX's arrays.
        given_back = 0
        for module in [module for _, module in model.named_modules() if not self._takes(module)]:
            self._convert(module)
            if self.held - given_back >= _GIVE_BACK_BYTES:
                give_back_freed()
                given_back = self.held
        give_back_freed()
        return self.held

    def _convert(self, module: nn.Module) -> None:
        """Give the module's own layers to the kernels."""
        routers = self._routers(module)
        for name in routers:
            # Rounded activations could choose other experts, and as a part of MLX's graph it needs no crossing.
            self._leave((module, name))
        linears, experts = (
            {name: child for name, child in self._children(module, form).items() if name not in routers}
            for form in (KernelLinear, KernelExperts)
        )
        sizes = {name: sizes_of(child) for name, child in linears.items()}
        mlp = recognise(module, sizes)
        if mlp and self._as_one(module, linears, mlp):
            return
        mlp = recognise(module, {name: sizes_of(child) for name, child in experts.items()}, EXPERT)
        if mlp and self._experts_as_one(module, experts, mlp):
            return
        for names in likely_together(sizes, ends=not self._children(module, KernelSummedLinear)):
            self._share([(module, name) for name in names])
        for place in self._places(module, routers):
            self._alone(place)

    def _as_one(self, module: nn.Module, linears: Children, mlp: Mlp) -> bool:
        before, after = foreign_columns(linears[mlp.last])
        if (before or after) and sizes_of(linears[mlp.inner[0]]).gives != sizes_of(linears[mlp.last]).takes:
            return False  # gate and what it opens in one matrix: there is no end to add the foreign rows at
        if not self._worth(list(linears.values())):
            return False
        read, last = self._matrices(linears[mlp.last])
        inner = [self._matrices(linears[name]) for name in mlp.inner]
        if not last or not all(found for _, found in inner):
            return False
        filled = [found[0].with_empty_rows(before, after) for _, found in inner]
        kernel = kernels.mlp(mlp.between.build, filled, last[0])
        for name in linears:
            module.pop(name)
        put_behind(module, KernelMlp)
        vars(module)["kernel"] = self._hold(kernel, read + sum(read for read, _ in inner))
        return True

    def _experts_as_one(self, module: nn.Module, experts: Children, mlp: Mlp) -> bool:
        if any(foreign_columns(child) != (0, 0) for child in experts.values()):
            return False
        if not self._worth(list(experts.values())):
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
        put_behind(module, KernelMlps)
        vars(module)["experts"] = made
        for kernel in made:
            self._hold(kernel, sum(read for read, _ in found.values()) // len(made))
        return True

    def _share(self, places: Sequence[Place]) -> None:
        if not self._worth([holder[key] for holder, key in places]):
            return
        found = []
        for holder, key in places:
            read, matrices = self._matrices(holder[key])
            if matrices:
                found.append((holder, key, read, matrices[0]))
            else:
                self._leave((holder, key))
        if not found:
            return
        kernel = kernels.linears([matrix for *_, matrix in found])
        self._hold(kernel, sum(read for _, _, read, _ in found))
        shared = shared_by(kernel)
        for number, (holder, key, _, _) in enumerate(found):
            made = upstream.blank(converted(type(holder[key]), self._forms))
            vars(made).update(shared=shared, place=number)
            holder[key] = made

    def _alone(self, place: Place) -> None:
        holder, key = place
        child = holder[key]
        form = self._form(child)
        if form is None:
            self._leave(place)
            return
        if form is KernelLinear:
            self._share([place])
            return
        if (form in (KernelEmbedding, KernelHead) and child is not self._head) or not self._worth([child]):
            return
        read, matrices = self._matrices(child)
        if not matrices:
            self._leave(place)
            return
        if form is KernelEmbedding:
            child.__class__ = converted(type(child), self._forms)
            vars(child)["head"] = self._hold(kernels.linears(matrices), 0)
            return
        made = upstream.blank(converted(type(child), self._forms))
        if form is KernelHead:
            self._head = None
            vars(made)["head"] = self._hold(kernels.linears(matrices), read)
        elif form is KernelSummedLinear:
            (matrix,) = matrices
            kernel = self._hold(kernels.linears([Matrix(matrix.weights)]), read)
            vars(made).update(shared=shared_by(kernel), place=0, group=child.group)
            if matrix.bias is not None:
                made.bias = mx.array(matrix.bias)
        else:
            vars(made)["experts"] = [self._hold(kernels.linears([m]), read // len(matrices)) for m in matrices]
        holder[key] = made

    def _hold(self, kernel: Kernel, read: int) -> Kernel:
        self.held += kernel.nbytes
        mx.clear_cache()
        self._progress(read)
        return kernel

    def _form(self, child: Any) -> type | None:
        """What the kernels make of a layer; None: nothing."""
        form = converted(type(child), self._forms) if isinstance(child, nn.Module) and self._takes(child) else None
        return innermost(form) if form else None

    def _children(self, module: nn.Module, form: type) -> dict[str, Any]:
        return {name: child for name, child in module.items() if self._form(child) is form}

    def _places(self, module: nn.Module, but: Collection[str]) -> Iterator[Place]:
        """Where the module itself still has layers of the kind."""
        for name, child in list(module.items()):
            if isinstance(child, list):
                yield from ((child, number) for number, entry in enumerate(child) if self._takes(entry))
            elif name not in but and self._takes(child):
                yield module, name

    def _routers(self, module: nn.Module) -> list[str]:
        """The layers by which a module that holds experts chooses among them."""
        held = (child for value in module.values() if isinstance(value, nn.Module) for child in value.values())
        counts = {len(child.weight) for child in held if self._form(child) is KernelExperts}
        return [name for name, child in self._children(module, KernelLinear).items() if sizes_of(child).gives in counts]

    def _embedding_of_all_tokens(self, model: nn.Module) -> nn.Module | None:
        """The one that is multiplied with where there is no head: not of positions, and not the wide one from which
        each layer takes a part.
        """
        embeddings = [
            module for _, module in model.named_modules() if self._form(module) in (KernelEmbedding, KernelHead)
        ]
        return max(embeddings, key=lambda one: (sizes_of(one).gives, -sizes_of(one).takes), default=None)


class _Packing(_Converter):
    """Every quantized layer: MLX multiplies none of them fast. Those that the kernels cannot hold are unpacked."""

    def __init__(self, model: nn.Module, tied_head: bool, progress: Progress) -> None:
        super().__init__(PACKED_FORMS, model, tied_head, progress)
        self.unheld = ""
        """The kind of quantization that the kernels cannot hold, if any was met."""

    def _takes(self, child: Any) -> bool:
        return upstream.has_plain_form(child)

    def _worth(self, layers: Sequence[Any]) -> bool:
        return True

    def _matrices(self, child: Any) -> tuple[int, list[Matrix]]:
        read, parts = _parts(child)
        found = []
        for own in parts:
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
        return read, found

    def _leave(self, place: Place) -> None:
        holder, key = place
        holder[key] = upstream.unpacked(holder[key], mx.float32)


class _LayingOut(_Converter):
    """Plain layers, where the crossing costs less than the BLAS, which lays a matrix out anew for each product."""

    def __init__(self, model: nn.Module, head_only: bool, progress: Progress) -> None:
        self._kept = upstream.kept_plain(model)
        super().__init__(LAID_OUT_FORMS, model, head_only, progress)

    def _takes(self, child: Any) -> bool:
        return isinstance(child, nn.Module) and is_plain(child) and id(child) not in self._kept

    def _worth(self, layers: Sequence[Any]) -> bool:
        return worth([sizes_of(layer) for layer in layers])

    def _matrices(self, child: Any) -> tuple[int, list[Matrix]]:
        read, parts = _parts(child)
        return read, [Matrix(Plain(own["weight"]), own.get("bias")) for own in parts]

    def _leave(self, place: Place) -> None:
        pass


def _parts(layer: Any) -> tuple[int, list[dict[str, Any]]]:
    """How many bytes a layer holds, read now, and its arrays by name: once for a matrix, or for each expert's."""
    arrays = {name: array for name, array in layer.items() if isinstance(array, mx.array)}
    mx.eval(list(arrays.values()))
    plain = {name: _plain(array) for name, array in arrays.items()}
    several = arrays["weight"].ndim == 3
    return sum(array.nbytes for array in arrays.values()), [
        {name: array[number] if several and array.ndim else array for name, array in plain.items()}
        for number in range(len(plain["weight"]) if several else 1)
    ]


def _plain(array: mx.array) -> Any:
    """For numpy, which has no bfloat16; what is no float is left as it is."""
    return np.array(array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array, copy=False)
