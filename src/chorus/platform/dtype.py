"""Which number type a model's weights get, and in which form they are multiplied. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from chorus.platform.device import Backend
from chorus.platform.sizes import size

Form = Literal["", "unpacked", "packed", "packed to 8 bits", "packed to 4 bits"]
"""Weights as MLX multiplies them; quantized ones unpacked; quantized ones multiplied on their packed bytes by a CPU's own
kernels (chorus.rank.products); others quantized as they are loaded, and then so.
"""
_METAL_PACKED = "Metal computes with packed weights"
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
    def name(self) -> str:
        """As a plan prints it and a rank is told it."""
        return policy_name(self.dtype, self.form)


def policy_name(dtype: str, form: Form) -> str:
    return f"{dtype}, {form}" if form else dtype


def planned_policy(name: str) -> DtypePolicy:
    """The policy that a plan decided on, by its name: the rank that loads it decides nothing."""
    known = {policy_name(dtype, form): (dtype, form) for dtype in _KEPT for form in get_args(Form) if _goes(dtype, form)}
    if name not in known:
        raise ValueError(f"the plan says to keep weights as {name!r}, which is unknown: update Chorus on all nodes")
    return DtypePolicy(*known[name], f"{name}, as planned")


def _goes(dtype: str, form: Form) -> bool:
    return form == "" or (form == "unpacked" and dtype != "stored") or dtype == "float32"


def on_backend(policy: DtypePolicy, backend: Backend) -> DtypePolicy:
    """The policy as a backend carries it out: Metal computes with packed weights, whoever planned otherwise."""
    if backend != "metal" or not policy.dequantize:
        return policy
    return replace(policy, form="", reason=f"{policy.reason}, but {_METAL_PACKED}")


def choose_dtype(
    backend: Backend,
    stored_dtype: str,
    quantized: bool,
    stored_bytes: int,
    dequantized_float32_bytes: int,
    dequantized_bf16_bytes: int,
    budget: int,
    wanted: str = "auto",
) -> DtypePolicy:
    """`budget` is what this rank may spend on weights; whether the result fits at all is for the loader to refuse."""
    if wanted not in WANTED:
        raise ValueError(f"dtype {wanted!r} is unknown: use one of {', '.join(WANTED)}")
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


def rule(backend: Backend) -> str:
    """What `auto` does on this backend, in words."""
    natural = _natural(backend, quantized=True)
    if natural == "stored":
        return "weights as stored"
    return f"{natural}; quantized weights are unpacked when they fit: {_why(backend, quantized=True)}"


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
