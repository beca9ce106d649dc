"""Reads one settings file or hostfile, YAML or JSON, into plain values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from chorus.errors import ChorusError

MOST_BYTES = 1 << 20
MOST_VALUES = 100_000
DEEPEST = 64


class ConfigError(ChorusError):
    """One line that names the source, the key and what was expected."""


def read_file(file: Path) -> Any:
    """The content of a file; None when it is empty."""
    text = _read_text(file)
    try:
        if file.suffix == ".json":
            return _parse_json(file, text)
        # YAML forbids the tabs that JSON files are often indented with.
        return _parse_json(file, text) if text.lstrip().startswith(("{", "[")) else _parse_yaml(file, text)
    except _NotJson:
        if file.suffix == ".json":
            raise
        return _parse_yaml(file, text)
    except RecursionError:
        raise _too_deep(file) from None


def user_path(text: str) -> Path:
    """A path as people write it, with ~ for a home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"{text}: there is no such user's home folder here") from None


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigError(f"{file}: larger than the {MOST_BYTES} bytes that settings may take")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: byte {error.start} is not UTF-8; expected YAML or JSON") from error
    except ValueError as error:
        # A name that no file can have.
        raise ConfigError(f"{str(file)!r}: cannot be read: {error}") from None


class _NotJson(ConfigError):
    """The text is no JSON; it may still be YAML."""


def _parse_json(file: Path, text: str) -> Any:
    if not text.strip():
        return None

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise ConfigError(f"{file}: {key}: given twice; expected each key once")
            seen[key] = value
        return seen

    try:
        content = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise _NotJson(
            f"{file}: line {error.lineno}, column {error.colno}: no JSON here: {error.msg.lower()}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None
    _check_extent(file, content, _inner_values)
    return content


def _inner_values(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


class _UniqueKeys(yaml.SafeLoader):
    """YAML itself lets the last of two equal keys win, which hides a slip."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(None, None, f"{key} is given twice, again in line {line}")
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def _parse_yaml(file: Path, text: str) -> Any:
    try:
        loader = _UniqueKeys(text)
        root = loader.get_single_node()
        if root is None:
            return None
        _check_extent(file, root, _inner_nodes)
        return loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{file}: {place}no YAML or JSON here: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: no YAML or JSON here: {' '.join(str(error).split())}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        # What PyYAML itself trips over, where a value is not what its tag says.
        raise ConfigError(f"{file}: no YAML or JSON here: {error}") from None


def _inner_nodes(node: Any) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return chain.from_iterable(node.value)
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def _check_extent(file: Path, root: Any, inner: Callable[[Any], Iterable[Any]]) -> None:
    """Before anything is made of it. Each alias in YAML stands for a copy of what it names: a few lines can hold more
    values than there is memory for, and a value can hold itself."""
    known: dict[int, tuple[int, int]] = {}

    def extent(value: Any) -> tuple[int, int]:
        if id(value) not in known:
            # Found again while it is being counted, it is within itself and has no end.
            known[id(value)] = (MOST_VALUES + 1, 0)
            parts = [extent(part) for part in inner(value)]
            known[id(value)] = (1 + sum(size for size, _ in parts), 1 + max((depth for _, depth in parts), default=0))
        return known[id(value)]

    size, depth = extent(root)
    if size > MOST_VALUES:
        raise ConfigError(f"{file}: holds more than {MOST_VALUES} values, each alias counted as what it stands for")
    if depth > DEEPEST:
        raise _too_deep(file)


def _too_deep(file: Path) -> ConfigError:
    return ConfigError(f"{file}: nested more than {DEEPEST} deep")
