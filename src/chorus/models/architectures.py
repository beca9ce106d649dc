"""The table of architectures: what is particular about each, as data. Imports no MLX.

The planner reads it by the `model_type` of a config.json, a rank by the name of the Python module that defines the
decoder; mostly these are the same word, and `ALIASES` has the others. What the table does not say of an architecture is
the usual. Other people's packages add rows by an entry point (docs/new-architecture.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points

from chorus.models.errors import ModelError

ENTRY_POINTS = "chorus.architectures"


class ArchitectureError(ModelError, RuntimeError):
    """A package that brings architectures failed to say which."""


@dataclass(frozen=True)
class Heads:
    """An attention, divided in whole key/value groups of heads. Names that a block does not have are passed over."""

    queries: tuple[str, ...] = ("q_proj",)
    shared: tuple[str, ...] = ("k_proj", "v_proj")
    """Projections whose outputs a group of heads shares."""
    fused: tuple[str, ...] = ()
    """Matrices that hold queries, keys and values one after the other."""
    output: str = "o_proj"
    stacked: tuple[str, ...] = ()
    """Modules with a matrix for each head."""
    entries: tuple[str, ...] = ()
    """Arrays with an entry for each head."""
    query_norms: tuple[str, ...] = ()
    """Norms over all queries at once."""
    shared_norms: tuple[str, ...] = ()
    """Norms over all keys at once."""
    heads: str = "n_heads"
    """The attribute that says how many heads there are."""
    groups: str | None = "n_kv_heads"
    """The attribute that says how many groups there are; None where every head is a group of its own."""
    ratios: tuple[str, ...] = ("repeats", "num_key_value_groups")
    """Attributes that say how many heads a group has."""


@dataclass(frozen=True)
class Inner:
    """An MLP, or experts that are MLPs, divided along the inner dimension."""

    at: str = ""
    """Its name in the block; empty where it is the block itself."""
    into: tuple[str, ...] = ("gate_proj", "up_proj")
    """The projections into the inner dimension."""
    fused: tuple[str, ...] = ()
    """Matrices that hold gate and up one after the other."""
    out_of: str = "down_proj"
    """The projection out of the inner dimension."""


@dataclass(frozen=True)
class SummedBlock:
    """A module of every layer whose output is summed over the ranks, once for all its parts."""

    at: str
    """Its name in the layer."""
    parts: tuple[Heads | Inner, ...]
    whole: tuple[str, ...] = ()
    """Members that every rank keeps: routers, norms of single heads."""


@dataclass(frozen=True)
class TensorRule:
    """How an architecture is divided inside its layers. A member of a block that it does not name is an error."""

    blocks: tuple[SummedBlock, ...]
    embedding: str = "embed_tokens"
    """Its name in the module that holds the layers."""
    head: str = "lm_head"
    """Its name anywhere in the model; where it is missing, the embedding is the head."""

    @property
    def sums(self) -> int:
        """How often the ranks add up their outputs in a layer."""
        return len(self.blocks)

    @property
    def divides_cache(self) -> bool:
        """Whether a rank keeps the keys and values of its own groups only; in latent attention all heads read one."""
        return all(heads.shared or heads.fused for _, heads in self.attention())

    def attention(self) -> Iterator[tuple[SummedBlock, Heads]]:
        """Each attention with the block that it is in."""
        yield from ((block, part) for block in self.blocks for part in block.parts if isinstance(part, Heads))


@dataclass(frozen=True)
class Architecture:
    """A row of the table."""

    tensor: TensorRule | None = None
    """None: it cannot be divided by weights, at most evenly, by mlx-lm itself."""
    pipeline: str | None = None
    """Where a package has its `PipelineRule`, as `module:name`; by name, since that module needs MLX."""
    ignores_windows: bool = False
    """mlx-lm keeps all keys, whatever window the configuration names."""
    expands_latents: bool = False
    """Its latent attention keeps full keys and values, not the latent."""
    keys_for_every_head: bool = False
    """Every head has keys of its own, whatever number of groups the configuration names."""
    read_by_all: str | None = None
    """A pattern for tensors that mlx-lm looks up on every rank before it knows which it needs."""
    not_kept: str | None = None
    """Why what was computed for one prompt must not be used for another that begins alike."""


_HEADS = Heads()
_LONG_NAMES = Heads(heads="num_attention_heads", groups="num_key_value_heads")
_LATENT = Heads(
    queries=("q_proj", "q_b_proj"), shared=(), stacked=("embed_q", "unembed_out"), heads="num_heads", groups=None
)


def _with_wide_norms(heads: Heads) -> Heads:
    return replace(heads, query_norms=("q_norm",), shared_norms=("k_norm",))


def _attention(heads: Heads, *whole: str) -> SummedBlock:
    return SummedBlock("self_attn", (heads,), whole)


_PLAIN = _attention(_HEADS, "q_norm", "k_norm")
_MLP = SummedBlock("mlp", (Inner(),))
_EXPERTS = SummedBlock("mlp", (Inner(), Inner("switch_mlp"), Inner("shared_experts")), whole=("gate",))

_LLAMA = TensorRule((_PLAIN, _MLP))
_MOE = TensorRule((_PLAIN, _EXPERTS))
_DEEPSEEK = TensorRule(
    (_attention(_LATENT, "q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm"), _EXPERTS)
)
_GPT_OSS = TensorRule(
    (
        _attention(replace(_LONG_NAMES, entries=("sinks",))),
        SummedBlock("mlp", (Inner("experts"),), whole=("router",)),
    )
)
_MINIMAX = TensorRule(
    (
        _attention(_with_wide_norms(_LONG_NAMES)),
        SummedBlock("block_sparse_moe", (Inner("switch_mlp"),), whole=("gate", "e_score_correction_bias")),
    )
)
_PHI = TensorRule(
    (
        _attention(Heads(heads="num_heads", groups="num_key_value_heads", output="dense")),
        SummedBlock("mlp", (Inner(into=("fc1",), out_of="fc2"),)),
    )
)
_PHI3 = TensorRule(
    (
        _attention(replace(_HEADS, fused=("qkv_proj",))),
        SummedBlock("mlp", (Inner(into=(), fused=("gate_up_proj",)),)),
    )
)

_CUTS_SHOW = "its answers depend on where a prompt is cut into chunks"

_TABLE = {
    "deepseek_v2": Architecture(expands_latents=True),
    "deepseek_v3": Architecture(tensor=_DEEPSEEK),
    "deepseek_v41": Architecture(not_kept=_CUTS_SHOW),
    "falcon_h1": Architecture(read_by_all=r"layers\.0\.mamba\.conv1d\.weight$"),
    "gemma": Architecture(tensor=_LLAMA),
    "gemma2": Architecture(tensor=_LLAMA, ignores_windows=True),
    "gemma3": Architecture(tensor=_LLAMA),
    "gemma3_text": Architecture(tensor=_LLAMA),
    "glm4_moe": Architecture(tensor=_MOE),
    "gpt_neox": Architecture(keys_for_every_head=True),
    "gpt_oss": Architecture(tensor=_GPT_OSS),
    "granite": Architecture(tensor=_LLAMA),
    "llama": Architecture(tensor=_LLAMA),
    "minicpm": Architecture(read_by_all=r"lm_head|embed_tokens"),
    "minicpm3": Architecture(expands_latents=True),
    "minimax": Architecture(tensor=_MINIMAX),
    "ministral3": Architecture(tensor=_LLAMA),
    "mistral": Architecture(tensor=_LLAMA, ignores_windows=True),
    "mistral3": Architecture(ignores_windows=True),
    "mixtral": Architecture(ignores_windows=True),
    "olmo": Architecture(keys_for_every_head=True),
    "olmo2": Architecture(tensor=TensorRule((_attention(_with_wide_norms(_HEADS)), _MLP))),
    "olmo3": Architecture(tensor=TensorRule((_attention(_with_wide_norms(_LONG_NAMES)), _MLP))),
    "phi": Architecture(tensor=_PHI),
    "phi3": Architecture(tensor=_PHI3, ignores_windows=True),
    "phi3small": Architecture(not_kept=_CUTS_SHOW),
    "phimoe": Architecture(ignores_windows=True),
    "phixtral": Architecture(keys_for_every_head=True),
    "plamo2": Architecture(ignores_windows=True),
    "plamo3": Architecture(not_kept=_CUTS_SHOW),
    "prism_hadamard_qwen35": Architecture(read_by_all=r"\.signs$"),
    "qwen": Architecture(keys_for_every_head=True),
    "qwen2": Architecture(tensor=_LLAMA, ignores_windows=True),
    "qwen2_moe": Architecture(ignores_windows=True),
    "qwen3": Architecture(tensor=_LLAMA),
    "qwen3_moe": Architecture(tensor=_MOE),
    "qwen3_vl_moe": Architecture(read_by_all=r"lm_head"),
    "seed_oss": Architecture(tensor=_LLAMA),
    "smollm3": Architecture(tensor=_LLAMA),
    "starcoder2": Architecture(ignores_windows=True),
    "youtu_llm": Architecture(expands_latents=True),
}

ALIASES = {
    "deepseek_v41_text": "deepseek_v41",
    "falcon_mamba": "mamba",
    "gemma4_unified": "gemma4",
    "iquestcoder": "llama",
    "joyai_llm_flash": "deepseek_v3",
    "kimi_k2": "deepseek_v3",
    "llava": "mistral3",
    "minimax_m2": "minimax",
    "mistral": "llama",
    "phi-msft": "phixtral",
    "qwen2_5_vl": "qwen2_vl",
    "xverse": "llama",
}
"""Model types whose decoder mlx-lm defines in a module of another name. mlx-lm has this table too, behind MLX."""

_USUAL = Architecture()


def register(architecture: Architecture, *names: str) -> None:
    """Put a row into the table under these names: model types, and modules that define decoders."""
    for name in names:
        _TABLE[name] = architecture


def register_packages() -> None:
    """Let every installed package that has an entry point for it register its architectures."""
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()()
        except Exception as error:
            raise ArchitectureError(
                f"the architectures of entry point {entry.name} ({entry.value}) failed: {error}"
            ) from error


@cache
def _packages_once() -> None:
    register_packages()


def named() -> list[str]:
    """Every architecture of which the table says something."""
    _packages_once()
    return sorted(_TABLE)


def architecture(name: str) -> Architecture:
    """What is particular about the architecture of this name."""
    _packages_once()
    return _TABLE.get(name) or _TABLE.get(ALIASES.get(name, name), _USUAL)


def why_unknown(model_type: str, classes: object = None) -> str:
    """What to say where the installed mlx-lm has no module for a type. `classes`: config.json's `architectures`."""
    class_name = next((name for name in classes if isinstance(name, str)), None) if isinstance(classes, list) else None
    also = f" ({class_name:.80})" if class_name else ""
    return (
        f"the installed mlx-lm does not know model type {model_type!r:.80}{also}: use a newer Chorus or another model; "
        'if it is a known architecture under another name, give that as "model_type" in config.json'
    )


def tensor_rule(*names: str) -> TensorRule | None:
    """The rule of the first of these names that has one; None where none has."""
    return next((rule for name in names if (rule := architecture(name).tensor)), None)
