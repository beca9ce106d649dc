"""What the machine that serves has of the model itself: all of it, or of a hub model only what its own rank needs.

Nodes fetch theirs from the hub, or copy them from a node that has them; for one that can do neither, this machine does.
This machine gets its own in the same two ways.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from chorus.cluster.transfer.fetch import fetch
from chorus.cluster.transfer.share import FileServer, SharedFile, SharedModel, TransferFailed, share_folder
from chorus.cluster.transfer.sources import FileSource, lacking
from chorus.models import LocalModel, Progress
from chorus.models.parts import hub_version, missing_weights
from chorus.platform.progress import Steady
from chorus.security.identity import Identity

log = logging.getLogger("chorus.coordinator")

AskNodes = Callable[[Sequence[SharedFile]], Awaitable[Sequence[FileSource]]]
"""Asks which nodes have some of these files."""


class _Stopped(Exception):
    """Nobody waits for the download any more."""


class OwnParts:
    def __init__(self, model: LocalModel, files: FileServer, report: Callable[[str], None], identity: Identity) -> None:
        """Asks the hub, once for each version, about files that are not here: may wait for the network."""
        self._identity = identity
        self._version = hub_version(model)
        self._files = files
        self._report = report
        missing = [SharedFile(name, size) for name, size in missing_weights(model).items()]
        self._absent = frozenset(file.name for file in missing)
        here = share_folder(self._version.name if self._version else model.name, model.path)
        known = tuple(sorted((*here.files, *missing), key=lambda file: file.name))
        # A commit is one content, whoever has how much of it; copies that nodes made stay good.
        digest = hashlib.sha256(self._version.name.encode()).hexdigest()[:32] if self._version else ""
        self.share = SharedModel(here.model, here.folder, known, digest)
        self._lock = asyncio.Lock()
        self._offer()

    @property
    def absent(self) -> frozenset[str]:
        """Files of the share that this machine lacks."""
        return self._absent

    async def fetch(self, files: Iterable[SharedFile], ask_nodes: AskNodes | None = None) -> None:
        """Get those that are not here: from nodes that have them, the rest from the hub. Raises ModelError; ends soon
        after it is cancelled.
        """
        async with self._lock:
            wanted = [file for file in files if file.name in self._absent]
            if not wanted or self._version is None:
                return
            stopped = threading.Event()
            try:
                if ask_nodes:
                    await self._copy(wanted, await ask_nodes(wanted), stopped)
                if names := sorted(self._absent & {file.name for file in wanted}):
                    await asyncio.to_thread(self._version.fetch, names, self._progress(stopped))
                    self._absent -= set(names)
            finally:
                stopped.set()
            self._offer()

    async def _copy(
        self, wanted: Sequence[SharedFile], sources: Sequence[FileSource], stopped: threading.Event
    ) -> None:
        nowhere = lacking((file.name for file in wanted), sources)
        there = [file for file in wanted if file.name not in nowhere]
        if not there:
            return
        total, done, tell = sum(file.size for file in there), 0, self._progress(stopped)

        def progress(count: int) -> None:
            nonlocal done
            done += count
            tell(Progress("copying the model", done, total))

        folder, share = self.share.folder, self.share.digest
        try:
            await asyncio.to_thread(fetch, there, folder, share, sources, self._identity, progress)
        except TransferFailed as error:
            log.warning("%s; asking the hub", error)
            return
        self._absent -= {file.name for file in there}

    def _progress(self, stopped: threading.Event) -> Callable[[Progress], None]:
        loop, steady = asyncio.get_running_loop(), Steady()

        def progress(seen: Progress) -> None:
            if stopped.is_set():
                raise _Stopped
            loop.call_soon_threadsafe(self._report, steady.text(seen))

        return progress

    def _offer(self) -> None:
        here = tuple(file for file in self.share.files if file.name not in self._absent)
        self._files.offer(replace(self.share, files=here, given_digest=self.share.digest))
