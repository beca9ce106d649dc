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
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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
                checksum, left = 0, length
                while left:
                    count = stream.readinto(buffer[: min(left, _BLOCK)])
                    if not count:
                        raise NotTrusted(f"{file} is shorter than it was: {left} bytes are missing")
                    checksum = zlib.crc32(buffer[:count], checksum)
                    connection.sendall(buffer[:count])
                    left -= count
            trust_join.send(connection, {"crc32": checksum})
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
            with _open_partial(partial) as out:
                done = _whole_ranges(journal, out, file.size)
                progress(sum(length for length in done.values()))
                with journal.open("a") as notes:
                    for start in range(0, file.size, RANGE_BYTES):
                        if start in done:
                            continue
                        length = min(RANGE_BYTES, file.size - start)
                        checksum = self._fetch_range(file.name, start, length, out, progress)
                        notes.write(f"{json.dumps([start, length, checksum])}\n")
                        notes.flush()
                out.truncate(file.size)
            partial.rename(target)
            journal.unlink(missing_ok=True)
        except (OSError, trust_join.JoinRefused) as error:
            raise TransferFailed(
                f"copying {file.name} from {self._source} to {target.parent} broke off: {error}"
            ) from error

    def _fetch_range(self, name: str, start: int, length: int, out: _Raw, progress: Progress) -> int:
        trust_join.send(self._connection, {"share": self._share, "file": name, "start": start, "length": length})
        buffer = memoryview(bytearray(_BLOCK))
        checksum, left = 0, length
        out.seek(start)
        while left:
            filled = 0
            wanted = min(left, _BLOCK)
            while filled < wanted:
                count = self._connection.recv_into(buffer[filled:wanted])
                if not count:
                    raise trust_join.JoinRefused("the other side closed the connection")
                filled += count
            checksum = zlib.crc32(buffer[:filled], checksum)
            out.write(buffer[:filled])
            left -= filled
            progress(filled)
        told = trust_join.receive(self._connection).get("crc32")
        if told != checksum:
            raise TransferFailed(f"bytes {start} to {start + length} of {name} from {self._source} arrived damaged")
        return checksum


class _Raw:
    """An unbuffered file that writes all it is given."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._at = 0

    def seek(self, position: int) -> None:
        self._at = position

    def write(self, data: memoryview) -> None:
        while data:
            count = os.pwrite(self.descriptor, data, self._at)
            self._at += count
            data = data[count:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)


@contextlib.contextmanager
def _open_partial(path: Path) -> Iterator[_Raw]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield _Raw(descriptor)
    finally:
        os.close(descriptor)


def _whole_ranges(journal: Path, out: _Raw, size: int) -> dict[int, int]:
    """Start and length of what an earlier try has, as far as the bytes on disk still match their checksum."""
    if not journal.is_file():
        return {}
    whole = {}
    for line in journal.read_text().splitlines():
        try:
            start, length, checksum = json.loads(line)
        except ValueError:
            continue  # cut off while it was written
        if start % RANGE_BYTES == 0 and start + length <= size and _checksum(out.descriptor, start, length) == checksum:
            whole[start] = length
    return whole


def _checksum(descriptor: int, start: int, length: int) -> int | None:
    checksum, at = 0, start
    while at < start + length:
        block = os.pread(descriptor, min(_BLOCK, start + length - at), at)
        if not block:
            return None
        checksum = zlib.crc32(block, checksum)
        at += len(block)
    return checksum
