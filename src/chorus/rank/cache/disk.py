"""A rank's segments on its own disk, under names that outlive it.

A name is a key that the leader makes of what the segment contains, so that after a restart it is found again. Written
by a thread of its own, beside the steps: the arrays are computed before they are handed over, and the thread sees bytes
only. A file is there whole or not at all, and what is damaged or was written for something else is not used.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from chorus.platform.sizes import size
from chorus.platform.storage.paths import private_folder
from chorus.rank.cache import segment_file
from chorus.rank.cache.segment_file import BrokenFile, Image
from chorus.rank.cache.store import Segment

log = logging.getLogger("chorus.rank")

ENDING = ".segment"
ASIDE = ".writing"
"""How the name of a file ends while it is written."""
MOST_KEYS = 1 << 14
"""A rank does not tell of more, nor does it write more."""
WAITING_BYTES = 1 << 30
"""What waits for the disk holds memory: beyond this, nothing more is taken."""
LOCK = "lock"
LOCK_SECONDS = 1.0
CLOSE_SECONDS = 5.0
"""How long a rank that ends goes on with what it was told to write."""

_KEY = re.compile(r"[0-9a-f]{16,128}")


@dataclass
class News:
    """What has become of keys since somebody asked last."""

    saved: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """These are not on the disk: they could not be written or read, or had to make room for others."""


class Disk(Protocol):
    """Where segments are kept beside memory."""

    @property
    def nbytes(self) -> int: ...

    @property
    def folder(self) -> Path | None:
        """Where the files of this rank's part are; None where there are none."""
        ...

    def held_keys(self) -> list[str]:
        """What can be restored, the oldest first."""
        ...

    def save(self, key: str, segment: Segment) -> None:
        """Write a segment when there is time for it; `news` tells what came of it."""
        ...

    def restore(self, key: str) -> Segment | None:
        """What was saved under this key; None, and a line in the log, where it cannot be had."""
        ...

    def erase(self, key: str) -> None:
        """Delete what was saved under this key; without one, all that was saved."""
        ...

    def news(self) -> News:
        """To be asked now and then by the thread that saves: it also lets go of what has been written."""
        ...

    def close(self) -> None: ...


class NoDisk:
    """Nothing is kept, and everything that is asked for fails."""

    nbytes = 0
    folder: Path | None = None

    def __init__(self) -> None:
        self._failed: list[str] = []

    def held_keys(self) -> list[str]:
        return []

    def save(self, key: str, segment: Segment) -> None:
        self._failed.append(key)

    def restore(self, key: str) -> Segment | None:
        self._failed.append(key)
        return None

    def erase(self, key: str) -> None:
        pass

    def news(self) -> News:
        news, self._failed = News(failed=self._failed), []
        return news

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class _Write:
    key: str
    image: Image
    """Held by the thread that owns the arrays until it hears that the writing is over: only there may they end."""


@dataclass(frozen=True)
class _Erase:
    key: str


@dataclass(frozen=True)
class _Outcome:
    written: str | None
    """The key of a wish to write, whatever came of it."""
    gone: frozenset[str]


class SegmentDisk:
    """Files of one model, divided in one way, on one rank; `fingerprint` says which. Files of others in the same folder
    count too where nobody has them open: the limit is for all, and the oldest goes first.
    """

    def __init__(self, folder: Path, fingerprint: str, limit: int) -> None:
        self._fingerprint, self._limit = fingerprint, limit
        self._own = private_folder(private_folder(folder) / fingerprint)
        self._lock: int | None = _own_lock(self._own)
        self._guard = threading.Lock()
        self._files: dict[Path, int] = {}
        """Their sizes, the oldest first."""
        self._total = 0
        self._news = News()
        self._writing: dict[str, _Write] = {}
        self._wishes: queue.SimpleQueue[_Write | _Erase | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._complained = False
        self._find_files(folder)
        self._thread = threading.Thread(target=self._work, name="segments", daemon=True)
        self._thread.start()

    @property
    def nbytes(self) -> int:
        return self._total

    @property
    def folder(self) -> Path | None:
        return self._own

    def held_keys(self) -> list[str]:
        with self._guard:
            return [file.stem for file in self._files if file.parent == self._own]

    def save(self, key: str, segment: Segment) -> None:
        check_key(key)
        if key in self._writing:
            return
        if self._use(self._file(key)):
            self._news.saved.append(key)
        elif sum(write.image.nbytes for write in self._writing.values()) + segment.nbytes > WAITING_BYTES:
            log.info("segment %s is not written: %s wait for the disk already", key, size(WAITING_BYTES))
            self._news.failed.append(key)
        else:
            self._writing[key] = _Write(key, segment_file.image(segment, self._fingerprint, key))
            self._wishes.put(self._writing[key])

    def restore(self, key: str) -> Segment | None:
        check_key(key)
        file = self._file(key)
        try:
            segment = segment_file.read(_content(file), self._fingerprint, key)
        except (OSError, BrokenFile) as error:
            self._drop(file, error)
            self._news.failed.append(key)
            return None
        self._use(file)
        self._news.restored.append(key)
        return segment

    def erase(self, key: str) -> None:
        if key:
            check_key(key)
        self._wishes.put(_Erase(key))

    def news(self) -> News:
        with contextlib.suppress(queue.Empty):
            while True:
                outcome = self._outcomes.get_nowait()
                if outcome.written:
                    del self._writing[outcome.written]
                    if outcome.written not in outcome.gone:
                        self._news.saved.append(outcome.written)
                self._news.failed += sorted(outcome.gone)
        news, self._news = self._news, News()
        return news

    def close(self) -> None:
        self._wishes.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _file(self, key: str) -> Path:
        return self._own / f"{key}{ENDING}"

    def _find_files(self, folder: Path) -> None:
        found = [(file.stat(), file) for file in _files_in(self._own)]
        for other in folder.iterdir():
            if other != self._own and other.is_dir() and (lock := _lock(other)) is not None:
                files = [(file.stat(), file) for file in _files_in(other)]
                found += files
                if not files:
                    _clear(other)
                os.close(lock)
        for status, file in sorted(found, key=lambda entry: entry[0].st_mtime_ns):
            try:
                if file.parent == self._own:
                    self._check_label(file, status.st_size)
                self._note(file, status.st_size)
            except (OSError, BrokenFile) as error:
                self._drop(file, error)
        self._make_room(0)

    def _check_label(self, file: Path, file_bytes: int) -> None:
        with file.open("rb") as stream:
            head = stream.read(segment_file.LENGTH_BYTES)
            head += stream.read(min(int.from_bytes(head, "little"), segment_file.HEADER_BYTES))
        header, _ = segment_file.label(head, file_bytes)
        segment_file.check_label(header, self._fingerprint, file.stem)

    def _note(self, file: Path, file_bytes: int) -> None:
        with self._guard:
            self._total += file_bytes - self._files.pop(file, 0)
            self._files[file] = file_bytes

    def _use(self, file: Path) -> bool:
        """Whoever is used becomes the youngest; answers whether it is there."""
        with self._guard:
            if file not in self._files:
                return False
            self._files[file] = self._files.pop(file)
        with contextlib.suppress(OSError):
            os.utime(file)
        return True

    def _drop(self, file: Path, reason: Exception) -> None:
        log.warning("segment %s is dropped: %s", file.stem, getattr(reason, "strerror", None) or reason)
        with self._guard:
            self._remove(file)

    def _remove(self, file: Path) -> None:
        self._total -= self._files.pop(file, 0)
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)

    def _work(self) -> None:
        """The thread's loop. It must not end: nobody would write any more."""
        while (wish := self._wishes.get()) is not None:
            if isinstance(wish, _Erase):
                self._outcomes.put(_Outcome(None, self._erase(wish.key)))
                continue
            key, gone = wish.key, frozenset[str]()
            try:
                gone = self._make_room(wish.image.nbytes)
                self._write(self._file(key), wish.image)
                self._complained = False
            except Exception as error:
                gone |= {key}
                if not self._complained:
                    log.warning("segments cannot be written to %s: %s", self._own, error)
                    self._complained = True
            del wish
            self._outcomes.put(_Outcome(key, gone))

    def _write(self, file: Path, content: Image) -> None:
        aside = file.with_suffix(ASIDE)
        try:
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0) as stream:
                for piece in content.pieces():
                    _write_out(stream.fileno(), memoryview(piece))
            aside.replace(file)
        except BaseException:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
        self._note(file, content.nbytes)

    def _erase(self, key: str) -> frozenset[str]:
        with self._guard:
            erased = [file for file in self._files if file.parent == self._own and key in ("", file.stem)]
            for file in erased:
                self._remove(file)
        return frozenset(file.stem for file in erased)

    def _make_room(self, wanted: int) -> frozenset[str]:
        """Remove the oldest until so many bytes more are within the limit; answers which of our own went."""
        if wanted > self._limit:
            raise OSError(0, f"{size(wanted)} are more than the {size(self._limit)} that all may take")
        gone = []
        with self._guard:
            while self._files and (self._total + wanted > self._limit or len(self._files) >= MOST_KEYS):
                oldest = next(iter(self._files))
                self._remove(oldest)
                if oldest.parent == self._own:
                    gone.append(oldest.stem)
        return frozenset(gone)


def check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key[:40]!r} cannot name a segment: a key is 16 to 128 hexadecimal digits")


def _own_lock(folder: Path) -> int:
    """Another rank that starts looks at everybody's files, which takes a moment."""
    deadline = time.monotonic() + LOCK_SECONDS
    while (lock := _lock(folder)) is None:
        if time.monotonic() > deadline:
            raise OSError(0, "another rank uses it", str(folder))
        time.sleep(LOCK_SECONDS / 20)
    return lock


def _lock(folder: Path) -> int | None:
    """Held as long as it is open; None where somebody else has it."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _files_in(folder: Path) -> Iterator[Path]:
    """Of a folder whose lock is held: what was being written there is removed, since whoever did has ended."""
    for file in folder.iterdir():
        if file.suffix == ENDING and _KEY.fullmatch(file.stem) and file.is_file():
            yield file
        elif file.suffix == ASIDE:
            file.unlink(missing_ok=True)


def _clear(folder: Path) -> None:
    """No segment is left: whatever was written about them goes too."""
    for file in folder.iterdir():
        if file.name != LOCK and file.is_file():
            file.unlink(missing_ok=True)


def _content(file: Path) -> memoryview:
    with file.open("rb", buffering=0) as stream:
        content = memoryview(np.empty(os.fstat(stream.fileno()).st_size, np.uint8))
        done = 0
        while done < content.nbytes and (count := stream.readinto(content[done:])):
            done += count
    return content[:done]


def _write_out(descriptor: int, piece: memoryview) -> None:
    while piece.nbytes:
        piece = piece[os.write(descriptor, piece) :]
