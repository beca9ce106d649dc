"""The `options` of a LocalAI model: `key:value` strings, typed, and what each means here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

from pydantic import Field, ValidationError

from chorus.config.hostfile import BACKENDS
from chorus.config.sampling import SamplingOptions
from chorus.config.strategies import STRATEGIES
from chorus.localai.errors import LoadFailed

Value = bool | int | float | str

SPECIAL_TOKENS = ("eos_token", "bos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class FixedSampling(SamplingOptions):
    """What the model's owner fixed. None: as each request says."""

    max_tokens: int | None = Field(default=None, ge=1)
    """A ceiling: a request may ask for less."""
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    """Zero: one is drawn for each request."""


NOTHING_FIXED = FixedSampling()


@dataclass(frozen=True)
class Options:
    sampling: FixedSampling = NOTHING_FIXED
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The part that is Chorus's own configuration, as a tree of overrides."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    tool_parser: str | None = None
    """How the model writes tool calls; None: as its chat template shows."""
    notes: tuple[str, ...] = ()
    """What was not used, and why: for the log."""


def parse_options(lines: Sequence[str]) -> Options:
    options = Options()
    for line in lines:
        key, colon, text = line.partition(":")
        key, text = key.strip(), text.strip()
        if not colon or not key:
            raise LoadFailed(f"option {line!r} is not of the form key:value")
        options = _take(options, key, text)
    return options


def typed(text: str) -> Value:
    """Bool, int, float, else the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _take(options: Options, key: str, text: str) -> Options:
    if key in _SAMPLING:
        return replace(options, sampling=options.sampling.model_copy(update=_fixed(key, typed(text))))
    if key in _SETTINGS:
        section, name, read = _SETTINGS[key]
        known = options.settings.get(section, {})
        tree = {**options.settings, section: {**known, name: read(key, text)}}
        return replace(options, settings=tree)
    if key in SPECIAL_TOKENS:
        return replace(options, special_tokens={**options.special_tokens, key: text})
    if key == "tool_parser":
        return replace(options, tool_parser=_text(key, text))
    return replace(options, notes=(*options.notes, f"option {key} is ignored: no such option"))


_SAMPLING = {"temp": "temperature"} | {
    name: name for name in FixedSampling.model_fields if name != "logit_bias" and not name.endswith("_context")
}
"""Which option fixes what."""


def _fixed(key: str, value: Value) -> dict[str, Any]:
    name = _SAMPLING[key]
    try:
        return FixedSampling.model_validate({name: value}, strict=True).model_dump(include={name})
    except ValidationError:
        raise LoadFailed(f"option {key}: expected {_expected(name)}, got {value!r}") from None


def _expected(name: str) -> str:
    """The bounds of a field, in words."""
    field = FixedSampling.model_fields[name]
    bounds = {kind: limit for bound in field.metadata for kind, limit in asdict(bound).items()}
    if int in get_args(field.annotation):
        return "a whole number" + (" above 0" if bounds["ge"] else ", 0 for no limit" if name == "top_k" else "")
    high = bounds.get("le", math.inf)
    if "gt" in bounds:
        return f"a number above {bounds['gt']:g}" + (f", up to {high:g}" if high < math.inf else "")
    return f"a number from {bounds['ge']:g} " + (f"to {high:g}" if high < math.inf else "on")


def _text(key: str, text: str) -> str:
    if not text:
        raise LoadFailed(f"option {key}: expected a value after the colon")
    return text


def _bool(key: str, text: str) -> bool:
    value = typed(text)
    if not isinstance(value, bool):
        raise LoadFailed(f"option {key}: expected true or false, got {text!r}")
    return value


def _one_of(known: Sequence[str]) -> Callable[[str, str], str]:
    def read(key: str, text: str) -> str:
        if text.lower() not in known:
            raise LoadFailed(f"option {key}: expected one of {', '.join(known)}, got {text!r}")
        return text.lower()

    return read


def _backend(key: str, text: str) -> str:
    return BACKENDS[_one_of(tuple(BACKENDS))(key, text)]


def _count(key: str, text: str) -> int:
    value = typed(text)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise LoadFailed(f"option {key}: expected a whole number above 0, got {value!r}")
    return value


def _counts(key: str, text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise LoadFailed(f"option {key}: expected numbers above 0 separated by commas, e.g. 20,7,3, got {text!r}")
    return counts


_SETTINGS: Mapping[str, tuple[str, str, Callable[[str, str], Any]]] = {
    "hostfile": ("cluster", "hostfile", _text),
    "coordinator": ("cluster", "coordinator", _text),
    "distributed_backend": ("engine", "transport", _backend),
    "transport": ("engine", "transport", _backend),
    "parallel": ("engine", "parallel", _one_of(("pipeline", "tensor"))),
    "split": ("engine", "split", _counts),
    "weights": ("engine", "weights", _counts),
    "ranks": ("engine", "ranks", _count),
    "strategy": ("sharding", "strategy", _one_of(tuple(STRATEGIES))),
    "context": ("engine", "context", _count),
    "context_size": ("engine", "context", _count),
    "max_kv_size": ("engine", "context", _count),
    "prompt_cache": ("cache", "enabled", _bool),
    "cache_memory": ("cache", "memory", _text),
    "cache_disk": ("cache", "disk", _text),
    "max_cache_entries": ("cache", "max_entries", _count),
    "trust_remote_code": ("engine", "trust_remote_code", _bool),
}
