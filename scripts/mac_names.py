"""Writes which names MLX has on a Mac, from the macOS wheel of the pinned version: `python scripts/mac_names.py`.

The wheel is downloaded and read, not installed, so any system will do.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
NAMES = ROOT / "tests" / "platform" / "mac_names.txt"
PLATFORM = "macosx_14_0_arm64"


def pinned() -> str:
    found = re.search(r'"mlx==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert found, "pyproject.toml pins no mlx"
    return found[1]


def download(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--platform", PLATFORM, "--python-version", "311", "--dest", str(folder)]
    subprocess.run([*command, f"mlx=={version}"], check=True, timeout=300)
    return next(folder.glob("mlx-*.whl"))


def names_in(wheel: Path) -> Iterator[str]:
    """`array`, `distributed.init`: what can follow `mx.`, also inside MLX's own modules."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.namelist():
            path = PurePosixPath(entry)
            if path.parent != PurePosixPath("mlx/core") or path.suffix != ".pyi":
                continue
            prefix = "" if path.stem == "__init__" else f"{path.stem}."
            if prefix:
                yield path.stem
            for name in _defined(ast.parse(archive.read(entry))):
                yield f"{prefix}{name}"


def _defined(module: ast.Module) -> Iterator[str]:
    for statement in module.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the file is another")
    check = parser.parse_args().check
    version = pinned()
    with tempfile.TemporaryDirectory() as folder:
        names = sorted(set(names_in(download(version, Path(folder)))))
    text = "\n".join([f"# mlx {version}, {PLATFORM}; written by scripts/mac_names.py", *names, ""])
    if check and NAMES.read_text() != text:
        print(f"{NAMES} is not what the wheel has: run `python scripts/mac_names.py`", file=sys.stderr)
        return 1
    if not check:
        NAMES.write_text(text)
    print(f"{len(names)} names in {NAMES.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
