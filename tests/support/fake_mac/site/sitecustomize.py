"""Found first on PYTHONPATH: every Python process that a test starts so takes chorus.platform's answers from a Mac.

Only functions of ours are replaced. `sys.platform` stays, or libraries would load what is not there.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path
from types import ModuleType


def system(module: ModuleType) -> None:
    module.name = lambda: "Darwin"  # type: ignore[attr-defined]
    module.machine = lambda: "arm64"  # type: ignore[attr-defined]


def service(module: ModuleType) -> None:
    """A user's own folders lie in HOME, which a test sets; those of the system need another place, and sudo."""
    module.DAEMONS = Path(os.environ["FAKE_MAC_DAEMONS"])  # type: ignore[attr-defined]
    module.is_root = lambda: False  # type: ignore[attr-defined]


REPLACED = {"chorus.platform.system": system, "chorus.platform.service": service}


class Finder(importlib.abc.MetaPathFinder):
    """Finds our modules as Python would, and changes them right after they are loaded."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name not in REPLACED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if spec and spec.loader:
            loader, replace = spec.loader, REPLACED[name]
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                replace(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder())
