"""Run by its path from a `sitecustomize` on PYTHONPATH: modules of ours are changed right after they are loaded."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping
from types import ModuleType

Change = Callable[[ModuleType], None]


class Finder(importlib.abc.MetaPathFinder):
    """Finds our modules as Python would, and changes them right after they are loaded."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self._changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if spec and spec.loader:
            loader, change = spec.loader, self._changes[name]
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                change(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install(changes: Mapping[str, Change]) -> None:
    sys.meta_path.insert(0, Finder(changes))
