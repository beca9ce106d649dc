"""Every exception of ours says by its base who meets it: people, or only the package that raises it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import chorus
from chorus.errors import ChorusError, InternalSignal

ROOT = Path(chorus.__file__).parent


def test_every_exception_is_for_people_or_for_its_own_package() -> None:
    neither = [
        f"{kind.__module__}.{kind.__name__}"
        for kind in exceptions()
        if not kind.__name__.startswith("_") and not issubclass(kind, (ChorusError, InternalSignal))
    ]
    assert not neither, f"derive from ChorusError or, where no other package meets it, from InternalSignal: {neither}"


def test_what_is_for_its_own_package_stays_there() -> None:
    internal = {kind.__name__: package(kind.__module__) for kind in exceptions() if issubclass(kind, InternalSignal)}
    del internal["InternalSignal"]
    assert internal
    elsewhere = [
        f"{module}: {name}"
        for module, names in imported()
        for name in names
        if name in internal and package(module) != internal[name]
    ]
    assert not elsewhere


def test_no_two_exceptions_share_a_name() -> None:
    names = [kind.__name__ for kind in exceptions() if not kind.__name__.startswith("_")]
    assert sorted(set(names)) == sorted(names)


def exceptions() -> set[type[Exception]]:
    return {
        kind
        for module in modules()
        for kind in vars(importlib.import_module(module)).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__.startswith("chorus.")
    }


def modules() -> Iterator[str]:
    """All but those that run when they are imported, and generated code."""
    for found in pkgutil.walk_packages([str(ROOT)], "chorus."):
        if not found.name.endswith("__main__") and ".proto." not in found.name:
            yield found.name


def imported() -> Iterator[tuple[str, list[str]]]:
    for module in modules():
        file = importlib.import_module(module).__file__
        assert file
        for node in ast.walk(ast.parse(Path(file).read_text())):
            if isinstance(node, ast.ImportFrom):
                yield module, [alias.name for alias in node.names]


def package(module: str) -> str:
    return module.split(".")[1]
