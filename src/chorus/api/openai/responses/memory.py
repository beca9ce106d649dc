"""Answers kept in memory, so that a client can continue from one by its id."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StoredResponse:
    """As JSON, so that it takes as much room as it is counted for."""

    owner: str
    body: bytes
    conversation: bytes

    @classmethod
    def of(cls, owner: str, body: dict[str, Any], messages: Sequence[dict[str, Any]]) -> StoredResponse:
        return cls(owner, json.dumps(body).encode(), json.dumps(messages).encode())

    @property
    def size(self) -> int:
        return len(self.body) + len(self.conversation)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The whole conversation up to and with the answer, but for the instructions: those hold for one request."""
        messages: list[dict[str, Any]] = json.loads(self.conversation)
        return messages


class MemoryStore:
    """Bounded in number and in bytes; what was used last stays longest. Each owner sees only its own, and what is
    larger than all of it drives out nobody."""

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, response_id: str, entry: StoredResponse) -> None:
        if entry.size > self._most_bytes:
            return
        self._entries[response_id] = entry
        self._bytes += entry.size
        while self._entries and (len(self._entries) > self._most_entries or self._bytes > self._most_bytes):
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= oldest.size

    def get(self, owner: str, response_id: str) -> StoredResponse | None:
        entry = self._entries.get(response_id)
        if entry is None or entry.owner != owner:
            return None
        self._entries.move_to_end(response_id)
        return entry

    def remove(self, owner: str, response_id: str) -> bool:
        if self.get(owner, response_id) is None:
            return False
        self._bytes -= self._entries.pop(response_id).size
        return True
