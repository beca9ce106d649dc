"""Which number type a model's weights get, and in which form they are multiplied. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from chorus.platform.accelerator.device import Backend
from chorus.platform.cpu import products
from chorus.platform.sizes import size

Form = Literal["", "unpacked", "packed", "packed to 8 bits", "packed to 4 bits"]
"""Weights as MLX multiplies them; quantized ones unpacked; quantized ones multiplied on their packed bytes by a CPU's
own kernels (chorus.rank.products); others quantized as they are loaded, and then so.
"""
Products = Literal["auto", "packed", "float32", "blas"]
"""What a CPU multiplies with: packed weights where that is the quickest, wherever it can, or nowhere; or nothing but
MLX's own products, which call the BLAS."""
UNPACKED: tuple[Products, ...] = ("float32", "blas")
"""Those with which quantized weights are unpacked."""
_PACKED_TO: dict[int, Form] = {8: "packed to 8 bits", 4: "packed to 4 bits"}
_METAL_PACKED = "Metal computes with packed weights"
_CPU_PACKED = "on a CPU packed weights are multiplied as they are, with int8 activations"
_KEPT = ("stored", "float32", "bfloat16", "float16")
WANTED = ("auto", *_KEPT)


@dataclass(frozen=True)
class DtypePolicy:
    dtype: str  # "float32", "bfloat16", "float16", or "stored": leave every tensor as it is in the file
    form: Form
    reason: str

    @property
    def dequantize(self) -> bool:
        return self.form == "unpacked"

    @property
    def packed(self) -> bool:
        """Whether the kernels of chorus.rank.products multiply."""
        return self.form.startswith("packed")

    @property
    def quantize_to(self) -> int | None:
        """How many bits weights are packed to that are not quantized yet."""
        return next((bits for bits, form in _PACKED_TO.items() if form == self.form), None)

    @property
    def name(self) -> str:
        """As a plan prints it and a rank is told it."""
        return policy_name(self.dtype, self.form)


def policy_name(dtype: str, form: Form) -> str:
    return f"{dtype}, {form}" if form else dtype


def planned_policy(name: str) -> DtypePolicy:
    """The policy that a plan decided on, by its name: the rank that loads it decides nothing."""
    known = {
        policy_name(dtype, form): (dtype, form) for dtype in _KEPT for form in get_args(Form) if _goes(dtype, form)
    }
    if name not in known:
        raise ValueError(f"the plan says to keep weights as {name!r}, which is unknown: update Chorus on all nodes")
    return DtypePolicy(*known[name], f"{name}, as planned")


def _goes(dtype: str, form: Form) -> bool:
    return form == "" or (form == "unpacked" and dtype != "stored") or dtype == "float32"


def on_backend(policy: DtypePolicy, backend: Backend, *, kernels: bool) -> DtypePolicy:
    """The policy as a backend carries it out, whoever planned otherwise: Metal computes with packed weights, and only a
    CPU that has `kernels` multiplies as they do.
    """
    if backend == "metal" and policy.dequantize:
        return replace(policy, form="", reason=f"{policy.reason}, but {_METAL_PACKED}")
    if not policy.packed or (backend == "cpu" and kernels):
        return policy
    if backend != "cpu":
        return DtypePolicy("stored", "", f"{policy.reason}, but {backend} runs weights as stored")
    return DtypePolicy("float32", _without_kernels(policy.form), f"{policy.reason}, but {products.REMEDY}")


def choose_dtype(
    backend: Backend,
    stored_dtype: str,
    quantized: bool,
    stored_bytes: int,
    dequantized_float32_bytes: int,
    dequantized_bf16_bytes: int,
    budget: int,
    wanted: str = "auto",
    cpu_products: str = "auto",
    pack: int | None = None,
    kernels: bool = False,
) -> DtypePolicy:
    """`budget` is what this rank may spend on weights; whether the result fits at all is for the loader to refuse.
    `pack` is to how many bits a CPU packs weights that are not quantized; `kernels`, whether it could.
    """
    if wanted not in WANTED:
        raise ValueError(f"dtype {wanted!r} is unknown: use one of {', '.join(WANTED)}")
    if cpu_products not in get_args(Products):
        raise ValueError(f"cpu_products {cpu_products!r} is unknown: use one of {', '.join(get_args(Products))}")
    packed = _packed_form(quantized, wanted, cpu_products, pack) if backend == "cpu" else ""
    if packed and kernels:
        return DtypePolicy("float32", packed, f"{packed}: {_CPU_PACKED}")
    if packed:
        sizes = stored_bytes, dequantized_float32_bytes, dequantized_bf16_bytes
        instead = choose_dtype(backend, stored_dtype, quantized, *sizes, budget, cpu_products="float32")
        return replace(instead, reason=f"{instead.reason}; {products.REMEDY}")
    if wanted == "stored":
        return DtypePolicy("stored", "", f"asked for as stored ({stored_dtype})")
    dtype = wanted if wanted != "auto" else _natural(backend, quantized)
    why = f"{dtype} was asked for" if wanted != "auto" else _why(backend, quantized)
    if dtype == "stored" or not quantized:
        return DtypePolicy(dtype, "", why)
    if backend == "metal":
        return DtypePolicy(dtype, "", f"{why}; {_METAL_PACKED} ({size(stored_bytes)})")
    needed = dequantized_float32_bytes if dtype == "float32" else dequantized_bf16_bytes
    if needed <= budget:
        return DtypePolicy(dtype, "unpacked", f"{why}; unpacked to {size(needed)} of {size(budget)}")
    kept = f"kept quantized ({size(stored_bytes)}): unpacked it would be {size(needed)} of {size(budget)}"
    if wanted == "auto" and backend == "cuda":
        return DtypePolicy("stored", "", f"{why}, but {kept}")
    return DtypePolicy(dtype, "", f"{why}; {kept}")


def _packed_form(quantized: bool, wanted: str, cpu_products: str, pack: int | None) -> Form:
    """How a CPU's kernels would multiply, as far as that is up to the settings; empty: not at all."""
    if cpu_products in UNPACKED:
        return ""
    if quantized:
        return "packed" if cpu_products == "packed" or wanted == "auto" else ""
    return _PACKED_TO[pack] if pack else ""


def _without_kernels(form: Form) -> Form:
    return "unpacked" if form == "packed" else ""


def rule(backend: Backend, *, kernels: bool) -> str:
    """What `auto` does on this backend, in words."""
    natural = _natural(backend, quantized=True)
    if natural == "stored":
        return "weights as stored"
    if backend == "cpu" and kernels:
        return f"{natural}; {_CPU_PACKED}"
    told = f"{natural}; quantized weights are unpacked when they fit: {_why(backend, quantized=True)}"
    return f"{told}; {products.REMEDY}" if backend == "cpu" else told


def _natural(backend: Backend, quantized: bool) -> str:
    if backend == "cpu":
        return "float32"
    return "bfloat16" if backend == "cuda" and quantized else "stored"


def _why(backend: Backend, quantized: bool) -> str:
    if backend == "cpu":
        return "on a CPU only float32 products reach the BLAS"
    if backend == "cuda" and quantized:
        return "on CUDA bfloat16 beats quantized weights at every batch size"
    return f"{backend} runs weights as stored"
