"""Which number type a model's weights get, and whether quantized ones are unpacked. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chorus.platform.device import Backend
from chorus.platform.sizes import size

_UNPACKED = ", unpacked"
_METAL_PACKED = "Metal computes with packed weights"
WANTED = ("auto", "stored", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class DtypePolicy:
    dtype: str  # "float32", "bfloat16", "float16", or "stored": leave every tensor as it is in the file
    dequantize: bool
    reason: str

    @property
    def name(self) -> str:
        """As a plan prints it and a rank is told it."""
        return policy_name(self.dtype, self.dequantize)


def policy_name(dtype: str, dequantize: bool) -> str:
    return f"{dtype}{_UNPACKED}" if dequantize else dtype


def planned_policy(name: str) -> DtypePolicy:
    """The policy that a plan decided on, by its name: the rank that loads it decides nothing."""
    dtype, unpacked = name.removesuffix(_UNPACKED), name.endswith(_UNPACKED)
    if dtype not in WANTED or dtype == "auto" or (unpacked and dtype == "stored"):
        raise ValueError(f"the plan says to keep weights as {name!r}, which is unknown: update Chorus on all nodes")
    return DtypePolicy(dtype, unpacked, f"{name}, as planned")


def on_backend(policy: DtypePolicy, backend: Backend) -> DtypePolicy:
    """The policy as a backend carries it out: Metal computes with packed weights, whoever planned otherwise."""
    if backend != "metal" or not policy.dequantize:
        return policy
    return replace(policy, dequantize=False, reason=f"{policy.reason}, but {_METAL_PACKED}")


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
        return DtypePolicy("stored", False, f"asked for as stored ({stored_dtype})")
    dtype = wanted if wanted != "auto" else _natural(backend, quantized)
    why = f"{dtype} was asked for" if wanted != "auto" else _why(backend, quantized)
    if dtype == "stored" or not quantized:
        return DtypePolicy(dtype, False, why)
    if backend == "metal":
        return DtypePolicy(dtype, False, f"{why}; {_METAL_PACKED} ({size(stored_bytes)})")
    needed = dequantized_float32_bytes if dtype == "float32" else dequantized_bf16_bytes
    if needed <= budget:
        return DtypePolicy(dtype, True, f"{why}; unpacked to {size(needed)} of {size(budget)}")
    kept = f"kept quantized ({size(stored_bytes)}): unpacked it would be {size(needed)} of {size(budget)}"
    if wanted == "auto" and backend == "cuda":
        return DtypePolicy("stored", False, f"{why}, but {kept}")
    return DtypePolicy(dtype, False, f"{why}; {kept}")


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
