"""What was answered is kept, so that a client can continue from it by its id: also at the next front end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from chorus.api.openai.responses.disk import TROUBLE, DiskStore, remove_store
from chorus.api.openai.responses.memory import MemoryStore, StoredResponse
from chorus.errors import ChorusError

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class CannotForget(ChorusError):
    """A response that was to be deleted may still be on the disk."""


class ResponseStore:
    """In a file, or in memory while that cannot be written. One thread does all of it in the order in which it was
    asked, so that no stream waits for a disk."""

    def __init__(self, file: Path | None, most_entries: int, most_bytes: int) -> None:
        self._most_bytes = most_bytes if most_entries else 0
        self._file = file
        self._memory = MemoryStore(most_entries, most_bytes)
        self._disk = DiskStore(file, most_entries, most_bytes) if file and self._most_bytes else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        self._told = False

    def open(self) -> None:
        """Nobody waits for it: a disk that hangs keeps no front end from serving."""
        self._thread.submit(self._open)

    async def close(self) -> None:
        if self._disk:
            await self._run(self._disk.close)
        self._thread.shutdown(wait=False)

    async def put(self, owner: str, body: dict[str, Any], messages: Sequence[dict[str, Any]]) -> None:
        await self._run(lambda: self._put(body["id"], StoredResponse.of(owner, body, messages)))

    async def get(self, owner: str, response_id: str) -> StoredResponse | None:
        return await self._run(lambda: self._get(owner, response_id))

    async def remove(self, owner: str, response_id: str) -> bool:
        """Raises CannotForget where it is not sure that nothing is left."""
        return await self._run(lambda: self._remove(owner, response_id))

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.wrap_future(self._thread.submit(work))

    # In the thread

    def _open(self) -> None:
        try:
            if self._disk:
                self._disk.open()
            elif self._file:
                remove_store(self._file)
        except TROUBLE as error:
            self._tell(error)

    def _put(self, response_id: str, entry: StoredResponse) -> None:
        if entry.size > self._most_bytes:
            return
        if self._disk:
            try:
                self._disk.put(response_id, entry)
            except TROUBLE as error:
                self._tell(error)
            else:
                self._told = False
                return
        self._memory.put(response_id, entry)

    def _get(self, owner: str, response_id: str) -> StoredResponse | None:
        if (entry := self._memory.get(owner, response_id)) or not self._disk:
            return entry
        try:
            return self._disk.get(owner, response_id)
        except TROUBLE as error:
            self._tell(error)
            return None

    def _remove(self, owner: str, response_id: str) -> bool:
        removed = self._memory.remove(owner, response_id)
        if not self._disk:
            return removed
        try:
            return self._disk.remove(owner, response_id) or removed
        except TROUBLE as error:
            if removed:
                return True
            raise CannotForget(f"{self._file} cannot be changed now: {error}") from None

    def _tell(self, error: Exception) -> None:
        """Once, until it works again."""
        if not self._told:
            self._told = True
            log.warning("responses are kept in memory and end with this process: %s: %s", self._file, error)
