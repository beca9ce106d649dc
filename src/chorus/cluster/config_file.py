"""Reads one settings file or hostfile, YAML or JSON, into plain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml


class ConfigError(Exception):
    """One line that names the source, the key and what was expected."""


def read_file(file: Path) -> Any:
    """The content of a file; None when it is empty."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: byte {error.start} is not UTF-8; expected YAML or JSON") from error
    if file.suffix == ".json":
        return _parse_json(file, text)
    try:
        # YAML forbids the tabs that JSON files are often indented with.
        return _parse_json(file, text) if text.lstrip().startswith(("{", "[")) else _parse_yaml(file, text)
    except _NotJson:
        return _parse_yaml(file, text)


class _NotJson(ConfigError):
    pass


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
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise _NotJson(
            f"{file}: line {error.lineno}, column {error.colno}: no JSON here: {error.msg.lower()}"
        ) from None


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
        return yaml.load(text, Loader=_UniqueKeys)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{file}: {place}no YAML or JSON here: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: no YAML or JSON here: {' '.join(str(error).split())}") from None
