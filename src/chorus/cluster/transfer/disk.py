"""A file on its way to a disk: ranges in any order, each noted once it is whole, written past the page cache.

Bytes that arrive faster than a disk takes them would first fill the memory that the model is about to need, and a copy
into fresh pages can cost more than the whole journey over the network. So blocks go from the receiving buffer straight
to the disk where the system has a way to do that, and through the page cache where it has none.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from chorus.platform.storage import disk

RANGE_BYTES = 32 << 20
BLOCK_BYTES = 4 << 20
"""What is written at once: large enough to keep a disk busy, small enough for another stream to receive meanwhile."""
_PART = 1 << 20
_ALIGNMENT = 4096


@dataclass(frozen=True)
class Range:
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


class Checksum:
    """The checksum of a range whose bytes are added in order.

    It is a message authentication code with a known key: no secret, but several times as fast as a hash, and blind to
    nothing that a disk or a memory does. It does not matter how the range is cut into calls, as long as every cut is at
    a multiple of a mebibyte.
    """

    _CODE = AESGCM(bytes(16))
    _NONCE = bytes(12)

    def __init__(self) -> None:
        self._total = hashlib.sha256()

    def add(self, block: memoryview) -> None:
        for start in range(0, len(block), _PART):
            self._total.update(self._CODE.encrypt(self._NONCE, b"", block[start : start + _PART]))

    @property
    def text(self) -> str:
        return self._total.hexdigest()[:32]


def aligned_buffer() -> memoryview:
    """One block, where the disk's own controller may read it."""
    return memoryview(mmap.mmap(-1, BLOCK_BYTES))


class PartialFile:
    """`NAME.part` and a journal of its whole ranges beside it, until `complete` puts the file in its place.

    Several threads may write different ranges at once.
    """

    def __init__(self, target: Path, size: int) -> None:
        self._target = target
        self._size = size
        self._path = target.with_name(f"{target.name}.part")
        self._journal = target.with_name(f"{target.name}.ranges")
        self._lock = threading.Lock()
        target.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        self._direct = disk.open_past_cache(self._path)
        self._past_cache = self._direct >= 0
        self.found = self._whole_ranges()
        """What an earlier try left and is still as it was."""
        self._notes = self._journal.open("a")

    @property
    def missing(self) -> list[Range]:
        there = {found.start for found in self.found}
        starts = (start for start in range(0, self._size, RANGE_BYTES) if start not in there)
        return [Range(start, min(RANGE_BYTES, self._size - start)) for start in starts]

    def write(self, data: memoryview, position: int) -> None:
        whole = len(data) - len(data) % _ALIGNMENT
        if self._past_cache and whole and position % _ALIGNMENT == 0:
            try:
                _write_all(self._direct, data[:whole], position)
                data, position = data[whole:], position + whole
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._past_cache = False  # this file system opens such files, but asks for another alignment
        _write_all(self._descriptor, data, position)

    def note(self, whole: Range, checksum: str) -> None:
        with self._lock:
            self._notes.write(f"{json.dumps([whole.start, whole.length, checksum])}\n")
            self._notes.flush()

    def complete(self) -> None:
        """Put the file in its place, which happens not before the disk has all of it."""
        os.ftruncate(self._descriptor, self._size)
        disk.sync(self._descriptor)
        self._path.rename(self._target)
        self._journal.unlink(missing_ok=True)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a note that the disk did not take means that its range is fetched again
            self._notes.close()
        os.close(self._descriptor)
        if self._direct >= 0:
            os.close(self._direct)

    def _whole_ranges(self) -> tuple[Range, ...]:
        """The ranges that the journal notes, as far as the bytes on disk still match their checksum."""
        if not self._journal.is_file():
            return ()
        whole: dict[int, Range] = {}
        for line in self._journal.read_text().splitlines():
            try:
                start, length, checksum = json.loads(line)
            except ValueError:
                continue  # cut off while it was written
            noted = Range(start, length)
            if start % RANGE_BYTES == 0 and noted.end <= self._size and self._checksum(noted) == checksum:
                whole[start] = noted
        return tuple(whole.values())

    def _checksum(self, noted: Range) -> str | None:
        checksum, at = Checksum(), noted.start
        while at < noted.end:
            block = os.pread(self._descriptor, min(_PART, noted.end - at), at)
            if not block:
                return None
            checksum.add(memoryview(block))
            at += len(block)
        return checksum.text


def _write_all(descriptor: int, data: memoryview, position: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, position)
        position += count
        data = data[count:]
