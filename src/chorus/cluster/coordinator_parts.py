"""What the machine that serves has of the model itself: all of it, or of a hub model only what its own rank needs.

Nodes fetch theirs from the hub, or copy them from a node that has them; for one that can do neither, this machine does.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from chorus.cluster.transfer import FileServer, Share, SharedFile, share_folder
from chorus.models import LocalModel, Progress
from chorus.models.parts import hub_version, missing_weights


class _Stopped(Exception):
    """Nobody waits for the download any more."""


class OwnParts:
    def __init__(self, model: LocalModel, files: FileServer, report: Callable[[str], None]) -> None:
        """Asks the hub for the sizes of files that are not here: may wait for the network."""
        self._version = hub_version(model)
        self._files = files
        self._report = report
        missing = [SharedFile(name, size) for name, size in missing_weights(model).items()]
        self._absent = frozenset(file.name for file in missing)
        here = share_folder(self._version.name if self._version else model.name, model.path)
        known = tuple(sorted((*here.files, *missing), key=lambda file: file.name))
        # A commit is one content, whoever has how much of it; copies that nodes made stay good.
        digest = hashlib.sha256(self._version.name.encode()).hexdigest()[:32] if self._version else ""
        self.share = Share(here.model, here.folder, known, digest)
        self._lock = asyncio.Lock()
        self._offer()

    @property
    def absent(self) -> frozenset[str]:
        """Files of the share that this machine lacks."""
        return self._absent

    async def fetch(self, files: Iterable[SharedFile]) -> None:
        """Download those that are not here. Raises ModelError; ends soon after it is cancelled."""
        async with self._lock:
            names = sorted(self._absent & {file.name for file in files})
            if not names or self._version is None:
                return
            stopped, loop = threading.Event(), asyncio.get_running_loop()

            def progress(seen: Progress) -> None:
                if stopped.is_set():
                    raise _Stopped
                loop.call_soon_threadsafe(self._report, f"{seen.label} {seen.done / max(seen.total or 0, 1):.0%}")

            try:
                await asyncio.to_thread(self._version.fetch, names, progress)
            finally:
                stopped.set()
            self._absent -= set(names)
            self._offer()

    def _offer(self) -> None:
        here = tuple(file for file in self.share.files if file.name not in self._absent)
        self._files.offer(replace(self.share, files=here, given_digest=self.share.digest))
