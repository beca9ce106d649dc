"""Lets a rank start without the half of mlx-lm that it never uses.

`import mlx_lm.utils` brings in text generation, tokenizers, transformers and the hub's client: two seconds of processor
time, while a rank wants the loader, the model classes and the caches. Here those parts become *deferred*: they are
there, and whoever touches one, say the code of a model folder with `from mlx_lm import load`, gets the real thing at
that moment. Only processes that are nothing but a rank call this; the library itself imports mlx-lm as everybody does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from chorus.platform.storage.filelimit import keep_file_limit

_PACKAGE = "mlx_lm"
_TOKENIZERS = "mlx_lm.tokenizer_utils"
_LOADER = "mlx_lm.utils"
SHADOWED = frozenset({"convert", "generate"})
"""Modules of mlx-lm's that its package replaces by functions of the same name."""


def install() -> None:
    """Defers what a rank does not need. Call it after `platform.prepare` and before anything imports mlx_lm."""
    if early := sorted(name for name in sys.modules if name.split(".")[0] == _PACKAGE):
        raise RuntimeError(f"{early[0]} is imported already: the lean start must come before the first use of mlx-lm")
    # What the deferred package would do first of all, for a grammar's tokenizer may come before it.
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    with keep_file_limit():
        _defer(_PACKAGE)
        tokenizers = _defer(_TOKENIZERS, then=_settle)
        hub = importlib.import_module("huggingface_hub")
        with (
            _lent(tokenizers, TokenizerWrapper=_TokenizerWrapper, load=_load_tokenizer),
            _lent(hub, snapshot_download=_snapshot_download),
        ):
            loader = importlib.import_module(_LOADER)
        if type(tokenizers) is Deferred:
            loader.__class__ = _Loader
        else:  # its import asked for more than the stand-ins
            _settle(tokenizers)


@dataclass
class _State:
    then: Callable[[ModuleType], None]
    lock: threading.RLock = field(default_factory=threading.RLock)
    running: bool = False


class Deferred(ModuleType):
    """A module whose code runs when somebody asks for a name that it does not have yet. Then it is one like any."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # Importing the module leaves it in the package, which would look complete and have no function there.
        if self.__name__ == _PACKAGE and name in SHADOWED and isinstance(value, ModuleType):
            _run(self)

    def __getattr__(self, name: str) -> Any:
        # The interpreter asks any module for names like __wrapped__, which say nothing about being needed.
        if not name.startswith("__") or name in ("__all__", "__version__"):
            _run(self)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None


def _run(module: ModuleType) -> None:
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    state: _State = spec.loader_state
    with state.lock:
        # Its own imports look for names too, and must find the module as far as it has come.
        if state.running or type(module) is ModuleType:
            return
        state.running = True
        try:
            with keep_file_limit():
                spec.loader.exec_module(module)
        finally:
            state.running = False
        module.__class__ = ModuleType
        state.then(module)


def _defer(name: str, then: Callable[[ModuleType], None] = lambda module: None) -> ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"there is no {name} in the installed mlx-lm: install the version that Chorus names")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader_state = _State(then)
    module.__class__ = Deferred
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, module)
    return module


@contextmanager
def _lent(module: ModuleType, **names: object) -> Iterator[None]:
    """Put these names into the module for as long as the block runs."""
    before = {name: module.__dict__[name] for name in names if name in module.__dict__}
    module.__dict__.update(names)
    try:
        yield
    finally:
        for name, value in names.items():
            if module.__dict__.get(name) is value:
                del module.__dict__[name]
                module.__dict__.update({name: before[name]} if name in before else {})


class _Loader(ModuleType):
    """mlx-lm's loader while it holds stand-ins: nobody else is given one."""

    def __getattribute__(self, name: str) -> Any:
        value = ModuleType.__getattribute__(self, name)
        if value is _TokenizerWrapper or value is _load_tokenizer:
            _run(sys.modules[_TOKENIZERS])
            return ModuleType.__getattribute__(self, name)
        return value


def _settle(tokenizers: ModuleType) -> None:
    """The loader took stand-ins; from now on it has the real ones."""
    loader = sys.modules[_LOADER]
    real = {_TokenizerWrapper: tokenizers.TokenizerWrapper, _load_tokenizer: tokenizers.load}
    for name, value in list(loader.__dict__.items()):
        for stand_in, thing in real.items():
            if value is stand_in:
                loader.__dict__[name] = thing
    loader.__class__ = ModuleType


class _Delegating(type):
    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return sys.modules[_TOKENIZERS].TokenizerWrapper(*arguments, **options)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # annotations are looked at for such names
            raise AttributeError(name)
        return getattr(sys.modules[_TOKENIZERS].TokenizerWrapper, name)


class _TokenizerWrapper(metaclass=_Delegating):
    """In the loader's annotations, and should its functions ever use it. There is no instance before the real one."""

    def __init_subclass__(cls) -> None:
        raise TypeError(f"{_LOADER} of this mlx-lm derives from TokenizerWrapper: the lean start does not fit it")


def _load_tokenizer(*arguments: Any, **options: Any) -> Any:
    return sys.modules[_TOKENIZERS].load(*arguments, **options)


def _snapshot_download(*arguments: Any, **options: Any) -> Any:
    return importlib.import_module("huggingface_hub").snapshot_download(*arguments, **options)
