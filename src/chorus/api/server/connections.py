"""Who may hold a connection open: those that showed a key, and strangers, who make room for each other."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple, Protocol


class ClientConnection(Protocol):
    def end(self) -> None:
        """At once, whatever it was doing."""


class _Group(NamedTuple):
    known: bool
    """The last request showed a key."""
    busy: bool
    """A request that has wholly arrived is being answered."""


_IDLE_STRANGERS = _Group(known=False, busy=False)
_BUSY_STRANGERS = _Group(known=False, busy=True)


class Pool:
    """Bounded: a newcomer takes the place of the stranger that has been without a request for longest."""

    def __init__(self, most: int, most_strangers: int, keys_required: bool) -> None:
        self._most = most
        self._most_strangers = min(most, most_strangers) if keys_required else most
        self._keys_required = keys_required
        self._group_of: dict[ClientConnection, _Group] = {}
        self._groups: dict[_Group, OrderedDict[ClientConnection, None]] = {
            _Group(known, busy): OrderedDict() for known in (False, True) for busy in (False, True)
        }

    def __len__(self) -> int:
        return len(self._group_of)

    @property
    def strangers(self) -> int:
        return len(self._groups[_IDLE_STRANGERS]) + len(self._groups[_BUSY_STRANGERS])

    def make_room(self) -> bool:
        """For one more; False where all are busy and none may be cut off."""
        return (len(self) < self._most and self.strangers < self._most_strangers) or self.end_one()

    def end_one(self) -> bool:
        """The one that is missed least, if there is any."""
        order = [_IDLE_STRANGERS, _Group(known=True, busy=False)]
        if self._keys_required:
            # What a stranger is being answered is a refusal, or how we are: nothing that others should wait for.
            order.insert(1, _BUSY_STRANGERS)
        oldest = next((next(iter(self._groups[group])) for group in order if self._groups[group]), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.end()
        return True

    def enter(self, connection: ClientConnection) -> None:
        self._put(connection, _IDLE_STRANGERS)

    def leave(self, connection: ClientConnection) -> None:
        if group := self._group_of.pop(connection, None):
            del self._groups[group][connection]

    def mark(self, connection: ClientConnection, *, known: bool | None = None, busy: bool | None = None) -> None:
        """One that was told to go has no place any more, and gets none."""
        if group := self._group_of.get(connection):
            self.leave(connection)
            self._put(
                connection,
                _Group(group.known if known is None else known, group.busy if busy is None else busy),
            )

    def _put(self, connection: ClientConnection, group: _Group) -> None:
        self._group_of[connection] = group
        self._groups[group][connection] = None
