"""The `options` of a LocalAI model: `key:value` strings, typed, and what each means here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import Field, ValidationError

from chorus.config.hostfile import BACKENDS
from chorus.config.sampling import SamplingOptions
from chorus.config.strategies import STRATEGIES
from chorus.localai.errors import LoadFailed
from chorus.text.parsers import is_known

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
    names: Mapping[str, str] = field(default_factory=dict)
    """By the full key of a setting, the option that gave it."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What was not used, and why: for the log."""


def parse_options(lines: Sequence[str]) -> Options:
    options = Options()
    for line in lines:
        key, colon, text = line.partition(":")
        key, text = key.strip(), text.strip()
        if colon and key:
            options = _take(options, key, text)
        else:
            options = _noted(options, f"option {line!r} is skipped: options are key:value, e.g. max_tokens:256")
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
    if reason := _unused(key, text):
        return _noted(options, f"option {key} is ignored: {reason}")
    if (key, text) == ("max_cache_entries", "0"):
        key, text = "prompt_cache", "false"
    if key in _SETTINGS:
        section, name, read = _SETTINGS[key]
        known = options.settings.get(section, {})
        tree = {**options.settings, section: {**known, name: read(key, text)}}
        return replace(options, settings=tree, names={**options.names, f"{section}.{name}": key})
    if key in SPECIAL_TOKENS:
        return replace(options, special_tokens={**options.special_tokens, key: text})
    near = get_close_matches(key, (*_SAMPLING, *_SETTINGS, *SPECIAL_TOKENS), 1)
    return _noted(options, f"option {key} is ignored: no such option" + (f"; did you mean {near[0]}?" if near else ""))


def _noted(options: Options, note: str) -> Options:
    return replace(options, notes=(*options.notes, note))


def _unused(key: str, text: str) -> str | None:
    """Why an option that LocalAI writes by itself, or that models have for another backend, does nothing here."""
    if key == "tool_parser" and text and not is_known(text):
        return f"no parser is called {text!r} here, so calls are read as the model's chat template shows them"
    if key == "reasoning_parser":
        return "how the model thinks is read from its chat template"
    if key == "parallel" and text.isdecimal():
        return "requests share a batch; max_batch in engine_args bounds how many run at once"
    return None


_SAMPLING = {"temp": "temperature"} | {
    name: name for name in FixedSampling.model_fields if name != "logit_bias" and not name.endswith("_context")
}
"""Which option fixes what."""


_OFF: Mapping[tuple[str, Value], Value | None] = {
    ("top_p", 0): 1.0,
    ("repetition_penalty", 0): 1.0,
    ("seed", -1): 0,
    ("max_tokens", 0): None,
    ("max_tokens", -1): None,
}
"""What mlx-lm and LocalAI take for "off", where we have another value for it."""


def _fixed(key: str, value: Value) -> dict[str, Any]:
    name = _SAMPLING[key]
    meant = value if isinstance(value, bool) else _OFF.get((name, value), value)
    try:
        return FixedSampling.model_validate({name: meant}, strict=True).model_dump(include={name})
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
    if value not in (True, False):  # 1 and 0 are equal to them
        raise LoadFailed(f"option {key}: expected true or false, got {text!r}")
    return bool(value)


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
    "tool_parser": ("api", "tool_parser", _text),
}
