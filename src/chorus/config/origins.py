"""Settings by their full keys, each with the source that gave it: for `chorus config show` and for errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from chorus.config.file import ConfigError
from chorus.config.settings import known_keys, nearest, sections

DEFAULT = "default"
COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Given:
    """One setting as one source gives it."""

    value: Any
    source: str
    """A file, `environment`, `.env` or `command line`."""
    spelled: str
    """What it is called there: a setting's own key, or a name from before Chorus."""

    @property
    def place(self) -> str:
        return f"{self.source}: {self.spelled}"

    def shown_origin(self, key: str) -> str:
        return self.source if self.spelled == key else self.place


Values = dict[str, Given]


def flatten(tree: Mapping[str, Any], source: str) -> Values:
    """The settings of a tree by their full keys; an unknown one is an error that names the nearest."""
    return {key: Given(value, source, key) for key, value in _leaves(tree, source)}


def _leaves(tree: Mapping[str, Any], source: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if name not in set(sections()):
            yield _known(str(name), source), value
            continue
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{source}: {name}: expected a mapping of settings, got {value!r}")
        for inner, leaf in (value or {}).items():
            yield _known(f"{name}.{inner}", source), leaf


def _known(key: str, source: str) -> str:
    if key not in set(known_keys()):
        raise ConfigError(f"{source}: {key}: no such setting{nearest(key, [*sections(), *known_keys()])}")
    return key


def unflatten(values: Mapping[str, Given]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, given in values.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = given.value
    return tree


def without_effect(given: Iterable[str], reasons: Mapping[str, str], source: str) -> list[str]:
    """A line for each reason why names that were given mean nothing here."""
    by_reason: dict[str, list[str]] = {}
    for name in dict.fromkeys(given):
        by_reason.setdefault(reasons[name], []).append(name)
    return [
        f"{source}: {', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect: {reason}"
        for reason, names in by_reason.items()
    ]


def shown_path(location: tuple[int | str, ...]) -> str:
    """`devices[1].port` from ("devices", 1, "port")."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def giver(values: Values, location: tuple[int | str, ...]) -> tuple[str, Given | None]:
    """Whose value an error is about: the setting's key and its giver.

    An error about a whole section belongs to the last source that said anything in it.
    """
    path = re.sub(r"\[.*", "", shown_path(location))
    for depth in range(len(path.split(".")), 0, -1):
        key = ".".join(path.split(".")[:depth])
        if key in values:
            return key, values[key]
    inside = [key for key in values if key.startswith(f"{path}.")] if path else list(values)
    return (inside[-1], values[inside[-1]]) if inside else (path, None)
