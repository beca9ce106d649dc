"""From LocalAI's LoadModel request to what will be started: which model, over which ranks, with which settings."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorus.config.file import ConfigError
from chorus.config.hostfile import TUNNELS_FILE, rdma_refusal
from chorus.config.settings import Settings
from chorus.config.sources import LoadedSettings, load
from chorus.config.strategies import WITHOUT_FIGURES
from chorus.deploy.hostfile.rendezvous import NoAddress, rank_addresses
from chorus.localai.errors import LoadFailed
from chorus.localai.options import FixedSampling, parse_options
from chorus.messages.proto import localai_pb2 as wire
from chorus.transport import catalog

HOSTFILE_VARIABLE = "MLX_DISTRIBUTED_HOSTFILE"
UNSAID_CONTEXT = 4096
"""What LocalAI sends as ContextSize for a model whose file has no context_size, or one below zero: the model's own."""

_REFUSED = {"LoraAdapter": "lora_adapter", "LoraAdapters": "lora_adapters", "DraftModel": "draft_model"}
"""Fields of LoadModel without which the model would answer as another one, and the keys of the model's file."""
_UNUSED = {
    "MMProj": "mmproj is ignored: images are not served",
    "Quantization": "quantization is ignored: weights are served as they are stored",
    "LoadFormat": "load_format is ignored: weights are read from safetensors or GGUF files",
    "Tokenizer": "tokenizer is ignored: it is the one in the model's folder",
    "RopeScaling": "rope_scaling is ignored: it is what the model's config.json says",
    "RopeFreqBase": "rope_freq_base is ignored: it is what the model's config.json says",
    "RopeFreqScale": "rope_freq_scale is ignored: it is what the model's config.json says",
    "Overrides": "overrides is ignored: it is for GGUF files in llama.cpp",
}
_NO_FILE = os.strerror(errno.ENOENT)
_HOSTFILE_FORM = '["192.168.1.10:5555", "192.168.1.11:5555"]'
_DTYPES = {"half": "float16", "float": "float32"}
_FULL_PRECISION_CACHE = ("", "auto", "f16", "f32", "bf16", "fp16", "fp32")

_DISTRUSTED = (
    "trust_remote_code is ignored: whoever can reach this backend could ask for it; if the model needs its own code, "
    "start the backend with --trust-remote-code"
)

Tree = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class LoadPlan:
    identity: str
    """LocalAI's own name for what it asked to load; later requests repeat it."""
    model: str
    """As the model store takes it: a path or a Hugging Face id."""
    settings: Settings
    ranks: tuple[str, ...]
    """Control addresses in rank order, from the hostfile; empty where every rank is started here."""
    sampling: FixedSampling
    special_tokens: Mapping[str, str]
    embeddings: bool
    """The owner says that this model is for embeddings, whatever its files say."""
    notes: tuple[str, ...]


def plan_load(
    request: wire.ModelOptions,
    flags: Tree,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    trust_remote_code: bool = False,
) -> LoadPlan:
    """Options go over the request's fields, those over EngineArgs, all of them over flags and the environment; but
    whether a model may run its own code is for whoever started this process to say.
    """
    environment = os.environ if environment is None else environment
    _refuse_unserved(request)
    options = parse_options(request.Options)
    overrides = _merged(flags, _engine_args(request.EngineArgs), _fields(request), options.settings)
    hostfile = overrides.get("cluster", {}).get("hostfile") or environment.get(HOSTFILE_VARIABLE)
    if hostfile and Path(hostfile).name == TUNNELS_FILE:
        raise LoadFailed(
            f"hostfile {hostfile} holds LocalAI's p2p tunnels and not rank 0, so no group can form from it: start the "
            "workers with `chorus worker p2p-mlx`, or give a hostfile with the addresses of all ranks"
        )
    try:
        loaded = load(None, overrides, environment, folder)
    except ConfigError as error:
        names = {**_flag_names(flags), **{key: f"option {name}" for key, name in options.names.items()}}
        raise LoadFailed(_explain(str(error), names, hostfile)) from None
    settings = loaded.settings
    distrusted = settings.engine.trust_remote_code and not trust_remote_code
    if distrusted:
        settings = settings.model_copy(
            update={"engine": settings.engine.model_copy(update={"trust_remote_code": False})}
        )
    return LoadPlan(
        identity=request.Model,
        model=_model_name(request),
        settings=settings,
        ranks=_addresses(settings),
        sampling=options.sampling,
        special_tokens=options.special_tokens,
        embeddings=request.Embeddings,
        notes=(
            *loaded.warnings,
            *_unused_fields(request),
            *_unused_strategy(loaded),
            *options.notes,
            *([_DISTRUSTED] if distrusted else []),
        ),
    )


def _refuse_unserved(request: wire.ModelOptions) -> None:
    for field, key in _REFUSED.items():
        if value := getattr(request, field):
            shown = value if isinstance(value, str) else ", ".join(value)
            raise LoadFailed(f"{key} {shown!r} is not supported: leave it out of the model's file")


def _model_name(request: wire.ModelOptions) -> str:
    if request.ModelFile and os.path.exists(request.ModelFile):
        return str(request.ModelFile)
    if not request.Model:
        raise LoadFailed("Model is empty: give a folder, a .gguf file or a Hugging Face id")
    return str(request.Model)


def _fields(request: wire.ModelOptions) -> Tree:
    engine: dict[str, Any] = {}
    if request.MaxModelLen < 0:
        raise LoadFailed(f"MaxModelLen: expected a number of tokens, got {request.MaxModelLen}")
    if request.MaxModelLen:
        engine["context"] = request.MaxModelLen
    elif request.ContextSize > 0 and request.ContextSize != UNSAID_CONTEXT:
        engine["context"] = request.ContextSize
    if request.DType:
        engine["dtype"] = _DTYPES.get(request.DType, request.DType)
    if request.GPUMemoryUtilization:
        # As it was written: a float of the wire has seven figures.
        engine["memory_fraction"] = float(f"{request.GPUMemoryUtilization:.7g}")
    if request.TrustRemoteCode:
        engine["trust_remote_code"] = True
    if request.TensorParallelSize > 1:
        engine |= {"parallel": "tensor", "ranks": request.TensorParallelSize}
    return {"engine": engine}


def _engine_args(text: str) -> Tree:
    if not text.strip():
        return {}
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise LoadFailed(f"EngineArgs is no JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise LoadFailed(f"EngineArgs: expected a JSON object of engine settings, got {text[:60]!r}")
    return {"engine": arguments}


def _merged(*trees: Tree) -> dict[str, dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for tree in trees:
        for section, values in tree.items():
            merged.setdefault(section, {}).update({key: value for key, value in values.items() if value is not None})
    return merged


def _flag_names(flags: Tree) -> dict[str, str]:
    given = [(section, name) for section, values in flags.items() for name in values if values[name] is not None]
    return {f"{section}.{name}": "--backend" if name == "transport" else f"--{name}" for section, name in given}


def _explain(problem: str, names: Mapping[str, str], hostfile: str | None) -> str:
    """What options and flags gave is called by the names it has there; the rest is the model's file."""
    for key, name in names.items():
        problem = problem.replace(f"command line: {key}", name, 1)
    problem = problem.replace("command line: ", "model's file: ", 1)
    if problem.endswith(_NO_FILE) and hostfile:
        return f"{problem}; it lists the addresses of all ranks: {_HOSTFILE_FORM}"
    return problem if not hostfile or str(hostfile) in problem else f"{problem} (hostfile {hostfile})"


def _addresses(settings: Settings) -> tuple[str, ...]:
    if len(settings.devices) < 2:
        return ()
    transport = settings.engine.transport
    if refusal := catalog.hostfile_refusal(transport):
        raise LoadFailed(refusal)
    where = f"hostfile {settings.cluster.hostfile}" if settings.cluster.hostfile else "devices"
    if refusal := rdma_refusal(settings.devices, transport):
        raise LoadFailed(f"{where}: {refusal}")
    try:
        return rank_addresses(settings.devices)
    except NoAddress as error:
        raise LoadFailed(f"{where}: {str(error).removeprefix('hostfile: ')}") from None


def _unused_fields(request: wire.ModelOptions) -> list[str]:
    return [note for field, note in _UNUSED.items() if getattr(request, field)] + [
        f"{name} {value!r} is ignored: for keys and values in 8 or 4 bits give kv_bits in engine_args"
        for name in ("CacheTypeKey", "CacheTypeValue")
        if (value := getattr(request, name)).lower() not in _FULL_PRECISION_CACHE
    ]


def _unused_strategy(loaded: LoadedSettings) -> list[str]:
    settings = loaded.settings
    strategy = settings.sharding.strategy
    if not settings.devices or settings.engine.split or not loaded.is_given("sharding.strategy"):
        return []
    if strategy in WITHOUT_FIGURES:
        return []
    return [
        f"strategy {strategy} is ignored, layers are divided evenly: a hostfile tells nothing of the machines' memory "
        "and speed; take the split that `chorus plan --nodes` prints, and give it as option split"
    ]
