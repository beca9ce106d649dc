"""The `options` of a LocalAI model: `key:value` strings, typed, and what each means here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chorus.config.hostfile import BACKENDS
from chorus.config.strategies import STRATEGIES
from chorus.localai.errors import LoadFailed

Value = bool | int | float | str

SPECIAL_TOKENS = ("eos_token", "bos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_SAME_WITHOUT = {
    "max_cache_entries": "stored prefixes are kept while memory lasts, not by number",
}
"""Options of the built-in backend that ask for something Chorus does by itself."""


@dataclass(frozen=True)
class SamplingOptions:
    """What the model's owner fixed. None: as each request says."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    xtc_threshold: float | None = None
    xtc_probability: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    """A ceiling: a request may ask for less."""


@dataclass(frozen=True)
class Options:
    sampling: SamplingOptions = SamplingOptions()
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
    value = typed(text)
    if key in _SAMPLING:
        name, check = _SAMPLING[key]
        fixed: dict[str, Any] = {name: check(key, value)}
        return replace(options, sampling=replace(options.sampling, **fixed))
    if key in _SETTINGS:
        section, name, read = _SETTINGS[key]
        known = options.settings.get(section, {})
        tree = {**options.settings, section: {**known, name: read(key, text)}}
        return replace(options, settings=tree)
    if key in SPECIAL_TOKENS:
        return replace(options, special_tokens={**options.special_tokens, key: text})
    if key == "tool_parser":
        return replace(options, tool_parser=_text(key, text))
    reason = _SAME_WITHOUT.get(key, "no such option")
    return replace(options, notes=(*options.notes, f"option {key} is ignored: {reason}"))


def _number(low: float, high: float, expected: str, *, above: bool = False) -> Callable[[str, Value], float]:
    def check(key: str, value: Value) -> float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not good or not low <= value <= high or (above and value == low):  # type: ignore[operator]
            raise LoadFailed(f"option {key}: expected {expected}, got {value!r}")
        return float(value)

    return check


def _whole(low: int, expected: str) -> Callable[[str, Value], int]:
    def check(key: str, value: Value) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise LoadFailed(f"option {key}: expected {expected}, got {value!r}")
        return value

    return check


_temperature = _number(0, 2, "a number from 0 to 2")
_share = _number(0, 1, "a number from 0 to 1")
_penalty = _number(-2, 2, "a number from -2 to 2")
_SAMPLING: Mapping[str, tuple[str, Callable[[str, Value], float | int]]] = {
    "temperature": ("temperature", _temperature),
    "temp": ("temperature", _temperature),
    "top_p": ("top_p", _number(0, 1, "a number above 0, up to 1", above=True)),
    "top_k": ("top_k", _whole(0, "a whole number, 0 for no limit")),
    "min_p": ("min_p", _share),
    "xtc_threshold": ("xtc_threshold", _number(0, 0.5, "a number from 0 to 0.5")),
    "xtc_probability": ("xtc_probability", _share),
    "repetition_penalty": ("repetition_penalty", _number(0, 10, "a number above 0, up to 10", above=True)),
    "presence_penalty": ("presence_penalty", _penalty),
    "frequency_penalty": ("frequency_penalty", _penalty),
    "seed": ("seed", _whole(0, "a whole number")),
    "max_tokens": ("max_tokens", _whole(1, "a whole number above 0")),
}


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
    return _whole(1, "a whole number above 0")(key, typed(text))


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
    "max_kv_size": ("engine", "context", _count),
    "trust_remote_code": ("engine", "trust_remote_code", _bool),
}
