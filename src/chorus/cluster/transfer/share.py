"""Model files for other nodes: what a node offers, and how it answers those who ask.

A client names a share and a file of it; it never names a path. TLS keeps the bytes whole on the way; the checksum of
each range covers the rest of the way, memory and disk, and lets a resumed copy trust what it finds.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chorus.cluster.transfer.disk import RANGE_BYTES, Checksum
from chorus.errors import ChorusError
from chorus.security import handshake
from chorus.security.member import Member, NotTrusted

FILES = "chorus-files/1"
"""The name of this protocol in a TLS handshake."""
TIMEOUT_SECONDS = 30.0
PROBE_BYTES = 16 << 20
"""The most that one measurement of a link may ask for."""
_BLOCK = 1 << 20
_HASHED_WHOLE = 16 << 20
_SAMPLES, _SAMPLE_BYTES = 16, 64 << 10


class TransferFailed(ChorusError):
    """A file cannot be copied: names the file, both ends and the reason."""


@dataclass(frozen=True)
class SharedFile:
    name: str
    size: int
    fingerprint: str = ""
    """Tells two files of one name and size apart; empty where nobody has looked inside."""


@dataclass(frozen=True)
class SharedModel:
    """The files of one model as its holder has them."""

    model: str
    folder: Path
    files: tuple[SharedFile, ...]
    given_digest: str = ""
    """Where another node has named the share, and this one holds part of it."""

    @property
    def digest(self) -> str:
        """Names the share on the wire: the same model with the same files has the same one."""
        content = json.dumps([self.model, [(file.name, file.size, file.fingerprint) for file in self.files]])
        return self.given_digest or hashlib.sha256(content.encode()).hexdigest()[:32]


def share_folder(model: str, folder: Path) -> SharedModel:
    """The files at the top of a model's folder that are no code, to be offered."""
    kinds = (".json", ".safetensors", ".model", ".tiktoken", ".txt", ".jinja")
    files = (file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    found = sorted(file for file in files if file.suffix in kinds)
    return SharedModel(
        model, folder, tuple(SharedFile(file.name, file.stat().st_size, fingerprint(file)) for file in found)
    )


def fingerprint(file: Path) -> str:
    """Names a file's content: by samples of a large one, which no two sets of weights share, so nobody reads it all."""
    size, digest = file.stat().st_size, hashlib.sha256()
    with file.open("rb") as stream:
        if size <= _HASHED_WHOLE:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:32]
        for number in range(_SAMPLES):
            stream.seek(number * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def is_same(file: Path, wanted: SharedFile) -> bool:
    """Whether this is the file that somebody means, as far as they told."""
    try:
        same_size = file.is_file() and file.stat().st_size == wanted.size
        return same_size and wanted.fingerprint in ("", fingerprint(file))
    except OSError:
        return False


def part_of_share(model: str, digest: str, folder: Path, wanted: Iterable[SharedFile]) -> SharedModel:
    """What a folder has of a share that another node named."""
    names = (file for file in wanted if Path(file.name).name == file.name)
    return SharedModel(model, folder, tuple(file for file in names if is_same(folder / file.name, file)), digest)


class FileServer:
    """Answers members at the door, for as long as their connection lasts."""

    def __init__(self) -> None:
        self._offered: dict[str, dict[str, tuple[Path, SharedFile]]] = {}
        """Where each file lies, by the share's digest and the file's name."""
        self._lock = threading.Lock()
        self.sent_bytes = 0
        self.probed_bytes = 0

    def offer(self, share: SharedModel) -> None:
        """Offer a model's files; what was offered before stays, since somebody may be about to fetch it."""
        with self._lock:
            offered = self._offered.setdefault(share.digest, {})
            offered.update({file.name: (share.folder, file) for file in share.files})

    def serve(self, connection: ssl.SSLSocket, host: str, member: Member) -> None:
        connection.settimeout(TIMEOUT_SECONDS)
        buffer = memoryview(bytearray(_BLOCK))
        while True:
            try:
                request = handshake.receive(connection)
            except handshake.JoinRefused:
                return  # the client is done
            if "probe" in request:
                probed = _answer_probe(connection, request["probe"])
                with self._lock:
                    self.probed_bytes += probed
                continue
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
            # Before the last word: who has heard that finds it counted.
            with self._lock:
                self.sent_bytes += length
            handshake.send(connection, {"checksum": checksum.text})

    def _find(self, request: Mapping[str, object]) -> tuple[Path, int, int]:
        with self._lock:
            found = self._offered.get(str(request.get("share")), {}).get(str(request.get("file")))
        start, length = request.get("start"), request.get("length")
        if found is None or not isinstance(start, int) or not isinstance(length, int):
            raise NotTrusted(f"a request for a file that is not offered: {str(dict(request))[:200]}")
        folder, entry = found
        if start < 0 or length < 0 or start + length > entry.size or length > RANGE_BYTES:
            raise NotTrusted(f"a request for bytes {start} to {start + length} of {entry.name}, which has {entry.size}")
        return folder / entry.name, start, length


def _answer_probe(connection: ssl.SSLSocket, length: object) -> int:
    """Send bytes that mean nothing: the asker measures how long they take."""
    if not isinstance(length, int) or not 0 <= length <= PROBE_BYTES:
        raise NotTrusted(f"a request to measure with {str(length)[:40]} bytes, at most {PROBE_BYTES} are sent")
    block = memoryview(bytes(_BLOCK))
    for start in range(0, length, _BLOCK):
        connection.sendall(block[: length - start])
    return length
