"""The running Chorus as a wheel, so that every host runs the very same code. The same files give the same bytes."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from pathlib import Path

import chorus
from chorus import __version__

_EPOCH = (2020, 1, 1, 0, 0, 0)
_DIST_INFO = f"mlx_chorus-{__version__}.dist-info"


def package_files(root: Path | None = None) -> dict[str, bytes]:
    """Every file of the installed package by its place in a wheel."""
    root = root or Path(chorus.__file__).parent
    found = sorted(file for file in root.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {f"chorus/{file.relative_to(root).as_posix()}": file.read_bytes() for file in found}


def build_wheel(files: dict[str, bytes]) -> bytes:
    content = {
        **files,
        f"{_DIST_INFO}/METADATA": f"Metadata-Version: 2.1\nName: mlx-chorus\nVersion: {__version__}\n".encode(),
        f"{_DIST_INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: chorus\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in content.items())
    content[f"{_DIST_INFO}/RECORD"] = f"{record}{_DIST_INFO}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def wheel_name() -> str:
    return f"mlx_chorus-{__version__}-py3-none-any.whl"


def content_hash(files: dict[str, bytes]) -> str:
    total = hashlib.sha256()
    for name, data in sorted(files.items()):
        total.update(f"{name}:{len(data)}:".encode() + data)
    return total.hexdigest()[:20]


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
