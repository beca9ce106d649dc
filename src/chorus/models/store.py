"""The models that Chorus made itself: one folder each, complete or not there at all.

An entry is built aside and renamed into place, under a lock of its own. Locks go with the process that holds them,
so a killed import blocks nobody; what it left behind is removed by whoever imports next.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from chorus.models.errors import ModelError
from chorus.models.tensors import read_json
from chorus.models.values import Progress, ProgressCallback, ignore_progress
from chorus.platform.storage.paths import models_dir

ORIGIN_FILE = "chorus.json"
LOCK_WAIT_S = 1800.0

_ASIDE = ".partial"
_LOCKS = ".locks"
_LOCK_POLL_S = 0.1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


@dataclass(frozen=True)
class Origin:
    """Where an entry came from; enough to know the same file again without importing it twice."""

    source: str
    sha256: str
    """Of the file; of a folder, of what its headers show (models/headers.py)."""
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Entry:
    """A model in the store."""

    name: str
    path: Path
    origin: Origin

    @property
    def nbytes(self) -> int:
        return _bytes_in(self.path)


@dataclass(frozen=True)
class Store:
    """The folder of models that were imported on this machine."""

    root: Path

    @classmethod
    def default(cls) -> Store:
        return cls(models_dir())

    @property
    def aside(self) -> Path:
        """Where what is being imported lies until it is whole."""
        return self.root / _ASIDE

    def entries(self) -> list[Entry]:
        if not self.root.is_dir():
            return []
        found = (self.get(path.name) for path in sorted(self.root.iterdir()))
        return [entry for entry in found if entry is not None]

    def get(self, name: str) -> Entry | None:
        path = self.root / name
        if not _NAME.fullmatch(name) or path.is_symlink() or not (path / ORIGIN_FILE).is_file():
            return None
        try:
            origin = Origin(**read_json(path / ORIGIN_FILE))
        except TypeError as error:
            raise ModelError(f"{path / ORIGIN_FILE} is damaged; run: chorus models rm {name}") from error
        return Entry(name, path, origin)

    def add(
        self,
        name: str,
        build: Callable[[Path], Origin],
        progress: ProgressCallback = ignore_progress,
        wait_s: float = LOCK_WAIT_S,
    ) -> Entry:
        """The entry of that name, built by `build` in an empty folder unless another process has made it meanwhile."""
        check_name(name)
        try:
            self._clean_leftovers()
            with self._locked(name, progress, wait_s):
                if entry := self.get(name):
                    return entry
                if (self.root / name).exists():
                    raise ModelError(f"{self.root / name} is in the way and no model; move it elsewhere.")
                with self._aside(name) as aside:
                    origin = build(aside)
                    (aside / ORIGIN_FILE).write_text(json.dumps(asdict(origin), indent=2) + "\n", encoding="utf-8")
                    os.rename(aside, self.root / name)
                return Entry(name, self.root / name, origin)
        except OSError as error:
            raise ModelError(f"Cannot store {name} in {self.root}: {error}.") from error

    def remove(self, name: str, wait_s: float = 10.0) -> int:
        """Takes the entry out of sight in one step, then deletes it; answers the bytes that are free again."""
        check_name(name)
        if not self._removable(name):
            raise ModelError(f"{name} is not in the store {self.root}; see: chorus models list")
        try:
            with self._locked(name, ignore_progress, wait_s), self._aside(name) as aside:
                if not self._removable(name):
                    return 0
                os.rename(self.root / name, aside / name)
                return _bytes_in(aside)
        except OSError as error:
            raise ModelError(f"Cannot remove {name} from {self.root}: {error}.") from error

    def _removable(self, name: str) -> bool:
        path = self.root / name
        return not path.is_symlink() and (path / ORIGIN_FILE).is_file()

    @contextmanager
    def _aside(self, name: str) -> Iterator[Path]:
        """A folder on the same file system as the store, gone afterwards unless it was renamed."""
        parent = self.aside
        parent.mkdir(parents=True, exist_ok=True)
        # A name cannot hold "@", so what stands before it says whose leftover this would be.
        aside = Path(tempfile.mkdtemp(prefix=f"{name}@", dir=parent))
        aside.chmod(0o755)
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _clean_leftovers(self) -> None:
        for leftover in self.aside.glob("*@*"):
            with self._open_lock(leftover.name.partition("@")[0]) as lock:
                if _try_lock(lock):
                    shutil.rmtree(leftover, ignore_errors=True)

    @contextmanager
    def _locked(self, name: str, progress: ProgressCallback, wait_s: float) -> Iterator[None]:
        deadline = time.monotonic() + wait_s
        with self._open_lock(name) as lock:
            # A file lock has no wait with a deadline, so it is asked for again and again.
            while not _try_lock(lock):
                if time.monotonic() >= deadline:
                    raise ModelError(
                        f"Another process has been busy with {name} for {wait_s:.0f} s; "
                        "wait until it is done, or end it, and try again."
                    )
                progress(Progress(f"waiting for another process to store {name}", 0, None))
                time.sleep(_LOCK_POLL_S)
            yield

    @contextmanager
    def _open_lock(self, name: str) -> Iterator[int]:
        folder = self.root / _LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            yield lock
        finally:
            os.close(lock)


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ModelError(f"{name!r} cannot name a model; use letters, digits, dot, dash and underscore, up to 96.")


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
