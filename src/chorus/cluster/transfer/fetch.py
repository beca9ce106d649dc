"""Copying model files from the nodes that have them, over several connections at once.

Each connection takes the next range that its source has, until none is left. A source that fails gives its range back
to the others and is replaced while there are any; the copy fails only when nobody is left who has what is missing.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chorus.cluster.transfer.disk import BLOCK_BYTES, Checksum, PartialFile, Range, aligned_buffer
from chorus.cluster.transfer.share import FILES, TIMEOUT_SECONDS, SharedFile, TransferFailed, is_same
from chorus.cluster.transfer.sources import FileSource, lacking, streams
from chorus.config.hostfile import split_address
from chorus.security import handshake
from chorus.security.identity import Identity
from chorus.security.meet import meet
from chorus.security.names import split_member

log = logging.getLogger("chorus.transfer")

STREAMS = 3
"""While one waits for its disk the others receive; more would only take turns on the same two ends."""

Progress = Callable[[int], None]
"""Bytes that have just arrived, or were found from an earlier try."""


class _SourceFailed(Exception):
    """This source is of no use any more; another may be."""


@dataclass
class _Arriving:
    file: SharedFile
    target: Path
    partial: PartialFile
    left: int
    """Ranges that are not whole yet."""


@dataclass
class _Copy:
    """What is still to be copied, shared by all streams."""

    share: str
    identity: Identity
    progress: Progress
    todo: list[tuple[_Arriving, Range]]
    spare: list[FileSource]
    running: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    taken: int = 0
    failure: Exception | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    connections: set[ssl.SSLSocket] = field(default_factory=set)

    def over(self) -> bool:
        return self.failure is not None or not (self.todo or self.taken)

    def take(self, source: FileSource) -> tuple[_Arriving, Range] | None:
        """The next range that this source has; waits while one may still be given back, None when that is all."""
        with self.changed:
            while not self.over():
                for number, (arriving, _) in enumerate(self.todo):
                    if arriving.file.name in source.files:
                        self.taken += 1
                        return self.todo.pop(number)
                if not self.taken:
                    return None
                self.changed.wait(1.0)
            return None

    def arrived(self, count: int) -> None:
        with self.changed:
            if self.failure:
                raise self.failure
            self.progress(count)

    def finish(self, arriving: _Arriving) -> None:
        with self.changed:
            arriving.left -= 1
            last = not arriving.left
        if last:
            arriving.partial.complete()
            if not is_same(arriving.target, arriving.file):
                arriving.target.unlink()
                raise TransferFailed(f"{arriving.file.name} arrived as another file: was it replaced meanwhile?")

    def put_down(self, given_back: tuple[_Arriving, Range] | None) -> None:
        with self.changed:
            self.taken -= 1
            if given_back:
                self.todo.insert(0, given_back)
            self.changed.notify_all()

    def fail(self, error: Exception) -> None:
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def next_source(self, source: FileSource, reason: str) -> FileSource | None:
        with self.changed:
            if not self.over():
                self.reasons[source.address] = reason
                log.warning("%s gives no more model files: %s", source.address, reason)
            return self.spare.pop(0) if self.spare and not self.over() else None


def fetch(
    files: Sequence[SharedFile],
    folder: Path,
    share: str,
    sources: Sequence[FileSource],
    identity: Identity,
    progress: Progress = lambda count: None,
) -> None:
    """Copy files of a share into a folder. What an earlier try left and is whole is kept; a file appears only once it
    is complete. Raises TransferFailed.
    """
    if nobody := lacking((file.name for file in files), sources):
        raise TransferFailed(f"no node offers {nobody[0]}")
    with contextlib.ExitStack() as cleanup:
        try:
            todo = _open(files, folder, progress, cleanup)
            first, spare = streams(sources, min(STREAMS, len(todo)))
            copy = _Copy(share, identity, progress, todo, spare, len(first))
            if todo:
                _run(copy, first)
        except OSError as error:
            raise TransferFailed(f"cannot write model files to {folder}: {error}") from error
        if copy.failure or copy.todo:
            names = ", ".join(dict.fromkeys(source.address for source in sources))
            why = copy.failure or "; ".join(f"{address}: {reason}" for address, reason in copy.reasons.items())
            raise TransferFailed(f"copying model files from {names} to {folder} broke off: {why}") from copy.failure


def _open(
    files: Sequence[SharedFile], folder: Path, progress: Progress, cleanup: contextlib.ExitStack
) -> list[tuple[_Arriving, Range]]:
    todo: list[tuple[_Arriving, Range]] = []
    for file in files:
        partial = cleanup.enter_context(contextlib.closing(PartialFile(folder / file.name, file.size)))
        progress(sum(found.length for found in partial.found))
        missing = partial.missing
        arriving = _Arriving(file, folder / file.name, partial, len(missing))
        todo += [(arriving, part) for part in missing]
        if not missing:
            partial.complete()
    return todo


def _run(copy: _Copy, first: Sequence[FileSource]) -> None:
    for number, source in enumerate(first):
        threading.Thread(target=_stream, args=(copy, source), name=f"copy-{number}", daemon=True).start()
    with copy.changed:
        while copy.running and not copy.over():
            copy.changed.wait(1.0)
        for connection in copy.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        # Files are closed after this: nobody may still be writing. Every wait of a stream is shorter than this one.
        deadline = time.monotonic() + 2 * TIMEOUT_SECONDS
        while copy.taken and time.monotonic() < deadline:
            copy.changed.wait(1.0)


def _stream(copy: _Copy, first: FileSource) -> None:
    source: FileSource | None = first
    buffer = aligned_buffer()
    try:
        while source is not None and not copy.over():
            try:
                _drain(copy, source, buffer)
                return
            except _SourceFailed as error:
                source = copy.next_source(source, str(error))
    finally:
        with copy.changed:
            copy.running -= 1
            copy.changed.notify_all()


def _drain(copy: _Copy, source: FileSource, buffer: memoryview) -> None:
    """Receive all that this source has and nobody else has taken."""
    with _connected(copy, source) as connection:
        while work := copy.take(source):
            given_back: tuple[_Arriving, Range] | None = work
            arriving, wanted = work
            try:
                _receive(copy, connection, arriving, wanted, buffer)
                given_back = None
                copy.finish(arriving)
            except _SourceFailed:
                raise
            except Exception as error:  # a full disk, or a caller that wants no more: another source is no help
                copy.fail(error)
            finally:
                copy.put_down(given_back)


@contextlib.contextmanager
def _connected(copy: _Copy, source: FileSource) -> Iterator[ssl.SSLSocket]:
    expected, place = split_member(source.address)
    host, port = split_address(place)
    with contextlib.ExitStack() as line:
        try:
            met = meet((host, port or 0), copy.identity, FILES, TIMEOUT_SECONDS, expected)
            connection, _ = line.enter_context(met)
        except OSError as error:
            raise _SourceFailed(f"cannot be reached ({error}); is a firewall in between?") from error
        with copy.changed:
            copy.connections.add(connection)
        try:
            yield connection
        finally:
            with copy.changed:
                copy.connections.discard(connection)


def _receive(copy: _Copy, connection: ssl.SSLSocket, arriving: _Arriving, wanted: Range, buffer: memoryview) -> None:
    checksum, at = Checksum(), wanted.start
    request = {"share": copy.share, "file": arriving.file.name, "start": wanted.start, "length": wanted.length}
    try:
        with _source_errors():
            handshake.send(connection, request)
        while at < wanted.end:
            block = buffer[: min(BLOCK_BYTES, wanted.end - at)]
            with _source_errors():
                _fill(connection, block)
            checksum.add(block)
            arriving.partial.write(block, at)
            at += len(block)
            copy.arrived(len(block))
        with _source_errors():
            told = handshake.receive(connection).get("checksum")
        if told != checksum.text:
            raise _SourceFailed(f"bytes {wanted.start} to {wanted.end} of {arriving.file.name} arrived damaged")
    except _SourceFailed:
        copy.progress(wanted.start - at)  # they will be sent again
        raise
    arriving.partial.note(wanted, checksum.text)


@contextlib.contextmanager
def _source_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise _SourceFailed(f"sent nothing for {TIMEOUT_SECONDS:g} s") from None
    except (OSError, handshake.JoinRefused) as error:
        raise _SourceFailed(str(error)) from error


def _fill(connection: ssl.SSLSocket, block: memoryview) -> None:
    while block:
        count = connection.recv_into(block)
        if not count:
            raise handshake.JoinRefused("the other side closed the connection")
        block = block[count:]
