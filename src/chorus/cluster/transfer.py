"""Model files from node to node: ranges over TLS, each with its checksum, resumed where a copy was cut off.

A client names a share and a file of it; it never names a path. TLS keeps the bytes whole on the way; the checksum of
each range covers the rest of the way, memory and disk, and lets a resumed copy trust what it finds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import queue
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from chorus.cluster import trust_join
from chorus.cluster.agent_door import FILES
from chorus.cluster.trust_enrol import connect
from chorus.cluster.trust_identity import SERVER_NAME, Identity, Member, NotTrusted

log = logging.getLogger("chorus.transfer")

RANGE_BYTES = 32 << 20
TIMEOUT_SECONDS = 30.0
_BLOCK = 1 << 20


class TransferFailed(Exception):
    """A file cannot be copied: names the file, both ends and the reason."""


@dataclass(frozen=True)
class SharedFile:
    name: str
    size: int


@dataclass(frozen=True)
class Share:
    """The files of one model as its holder has them."""

    model: str
    folder: Path
    files: tuple[SharedFile, ...]

    @property
    def digest(self) -> str:
        """Names the share on the wire: the same model with the same files has the same one."""
        content = json.dumps([self.model, [(file.name, file.size) for file in self.files], self._descriptions()])
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def _descriptions(self) -> list[str]:
        """Small files are told apart by content; large ones by name and size."""
        small = [file for file in self.files if file.name.endswith(".json")]
        return [hashlib.sha256((self.folder / file.name).read_bytes()).hexdigest() for file in small]


def share_folder(model: str, folder: Path) -> Share:
    """What is at the top of a model's folder and is no code."""
    kinds = (".json", ".safetensors", ".model", ".tiktoken", ".txt", ".jinja")
    found = sorted(file for file in folder.iterdir() if file.is_file() and file.suffix in kinds)
    return Share(model, folder, tuple(SharedFile(file.name, file.stat().st_size) for file in found))


class FileServer:
    """Answers members at the door, for as long as their connection lasts."""

    def __init__(self) -> None:
        self._shares: dict[str, Share] = {}
        self._lock = threading.Lock()
        self.sent_bytes = 0

    def offer(self, share: Share) -> None:
        with self._lock:
            self._shares[share.digest] = share

    def serve(self, connection: ssl.SSLSocket, host: str, member: Member) -> None:
        connection.settimeout(TIMEOUT_SECONDS)
        buffer = memoryview(bytearray(_BLOCK))
        while True:
            try:
                request = trust_join.receive(connection)
            except trust_join.JoinRefused:
                return  # the client is done
            file, start, length = self._find(request)
            with file.open("rb", buffering=0) as stream:
                stream.seek(start)
                checksum, left = Checksum(), length
                while left:
                    count = stream.readinto(buffer[: min(left, _BLOCK)])
                    if not count:
                        raise NotTrusted(f"{file} is shorter than it was: {left} bytes are missing")
                    checksum.add(buffer[:count])
                    connection.sendall(buffer[:count])
                    left -= count
            trust_join.send(connection, {"checksum": checksum.text})
            with self._lock:
                self.sent_bytes += length

    def _find(self, request: Mapping[str, object]) -> tuple[Path, int, int]:
        with self._lock:
            share = self._shares.get(str(request.get("share")))
        entry = next((file for file in share.files if file.name == request.get("file")), None) if share else None
        start, length = request.get("start"), request.get("length")
        if share is None or entry is None or not isinstance(start, int) or not isinstance(length, int):
            raise NotTrusted(f"a request for a file that is not offered: {str(dict(request))[:200]}")
        if start < 0 or length < 0 or start + length > entry.size or length > RANGE_BYTES:
            raise NotTrusted(f"a request for bytes {start} to {start + length} of {entry.name}, which has {entry.size}")
        return share.folder / entry.name, start, length


Progress = Callable[[int], None]
"""Bytes that have just arrived, or were found from an earlier try."""


class Fetcher:
    """One connection to a holder, and the files copied over it."""

    def __init__(self, address: tuple[str, int], identity: Identity, share: str) -> None:
        self._source = f"{address[0]}:{address[1]}"
        self._share = share
        try:
            self._connection = connect(address, identity.client_context([FILES]), TIMEOUT_SECONDS, SERVER_NAME)
        except OSError as error:
            raise TransferFailed(
                f"cannot reach {self._source} for model files: {error}; is a firewall in between?"
            ) from error

    def close(self) -> None:
        self._connection.close()

    def fetch(self, file: SharedFile, target: Path, progress: Progress = lambda count: None) -> None:
        """Copy one file. What an earlier try left and is whole is kept; the file appears only when complete."""
        partial, journal = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.ranges")
        try:
            with _open_partial(partial) as descriptor:
                done = _whole_ranges(journal, descriptor, file.size)
                progress(sum(done.values()))
                starts = [start for start in range(0, file.size, RANGE_BYTES) if start not in done]
                ranges = [(start, min(RANGE_BYTES, file.size - start)) for start in starts]
                with journal.open("a") as notes, _Writer(descriptor, notes) as writer:
                    self._receive(file.name, ranges, writer, progress)
                os.ftruncate(descriptor, file.size)
            partial.rename(target)
            journal.unlink(missing_ok=True)
        except (OSError, trust_join.JoinRefused) as error:
            what = f"copying {file.name} from {self._source} to {target.parent}"
            raise TransferFailed(f"{what} broke off: {error}") from error

    def _receive(self, name: str, ranges: Sequence[tuple[int, int]], writer: _Writer, progress: Progress) -> None:
        """One range is asked for ahead, so that the holder never waits for us; a thread of its own writes."""
        for number in range(len(ranges) + 1):
            if number < len(ranges):
                start, length = ranges[number]
                request = {"share": self._share, "file": name, "start": start, "length": length}
                trust_join.send(self._connection, request)
            if number:
                self._receive_range(*ranges[number - 1], writer, progress)

    def _receive_range(self, start: int, length: int, writer: _Writer, progress: Progress) -> None:
        at, end = start, start + length
        while at < end:
            buffer = writer.free_buffer()
            wanted = min(end - at, _BLOCK)
            filled = 0
            while filled < wanted:
                count = self._connection.recv_into(buffer[filled:wanted])
                if not count:
                    raise trust_join.JoinRefused("the other side closed the connection")
                filled += count
            writer.write(buffer, filled, at)
            at += filled
            progress(filled)
        writer.finish(start, length, str(trust_join.receive(self._connection).get("checksum")))


class Checksum:
    """Of a range, told block by block. A message authentication code with a known key: no secret, but several times as
    fast as a hash, and blind to nothing that a disk or a memory does."""

    _CODE = AESGCM(bytes(16))
    _NONCE = bytes(12)

    def __init__(self) -> None:
        self._total = hashlib.sha256()

    def add(self, block: memoryview | bytes) -> None:
        self._total.update(self._CODE.encrypt(self._NONCE, b"", block))

    @property
    def text(self) -> str:
        return self._total.hexdigest()[:32]


class _Writer:
    """Writes blocks on a thread of its own while the next ones arrive; notes every range that is whole."""

    BUFFERS = 4

    def __init__(self, descriptor: int, notes: TextIO) -> None:
        self._descriptor = descriptor
        self._notes = notes
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for _ in range(self.BUFFERS):
            self._free.put(memoryview(bytearray(_BLOCK)))
        self._work: queue.SimpleQueue[tuple[memoryview, int, int] | tuple[int, int, str] | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="copy-writer", daemon=True)

    def __enter__(self) -> _Writer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._work.put(None)
        self._thread.join()
        if kind is None:
            self._check()

    def free_buffer(self) -> memoryview:
        self._check()
        return self._free.get()

    def write(self, buffer: memoryview, length: int, position: int) -> None:
        self._work.put((buffer, length, position))

    def finish(self, start: int, length: int, told: str) -> None:
        self._work.put((start, length, told))

    def _check(self) -> None:
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        checksum = Checksum()
        while (item := self._work.get()) is not None:
            try:
                match item:
                    case (memoryview() as buffer, length, position):
                        if self._failure is None:
                            checksum.add(buffer[:length])
                            _write_all(self._descriptor, buffer[:length], position)
                        self._free.put(buffer)
                    case (int() as start, length, str() as told):
                        if self._failure is None:
                            self._note(start, length, told, checksum.text)
                        checksum = Checksum()
            except (OSError, TransferFailed) as error:
                self._failure = error
                if isinstance(item[0], memoryview):
                    self._free.put(item[0])

    def _note(self, start: int, length: int, told: str, found: str) -> None:
        if told != found:
            raise TransferFailed(f"bytes {start} to {start + length} arrived damaged: try again")
        self._notes.write(f"{json.dumps([start, length, found])}\n")
        self._notes.flush()


def _write_all(descriptor: int, data: memoryview, position: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, position)
        position += count
        data = data[count:]


@contextlib.contextmanager
def _open_partial(path: Path) -> Iterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _whole_ranges(journal: Path, descriptor: int, size: int) -> dict[int, int]:
    """Start and length of what an earlier try has, as far as the bytes on disk still match their checksum."""
    if not journal.is_file():
        return {}
    whole = {}
    for line in journal.read_text().splitlines():
        try:
            start, length, checksum = json.loads(line)
        except ValueError:
            continue  # cut off while it was written
        if start % RANGE_BYTES == 0 and start + length <= size and _checksum(descriptor, start, length) == checksum:
            whole[start] = length
    return whole


def _checksum(descriptor: int, start: int, length: int) -> str | None:
    checksum, at = Checksum(), start
    while at < start + length:
        block = os.pread(descriptor, min(_BLOCK, start + length - at), at)
        if not block:
            return None
        checksum.add(block)
        at += len(block)
    return checksum.text
