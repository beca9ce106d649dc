"""Answers kept in a file that only this user can read, where the next front end finds them.

SQLite's write-ahead log leaves what was there before or what came after, whenever a process is killed, and lets two
front ends share the file while one takes over from the other. Everything here blocks, and belongs to one thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from chorus.api.openai.responses.memory import StoredResponse
from chorus.platform.storage.paths import private_folder

log = logging.getLogger(__name__)

TROUBLE = (OSError, sqlite3.Error)
"""A full disk, a folder that cannot be written, a file that another process keeps locked."""

_FORMAT = 1
_LOCKED_SECONDS = 10.0
"""How long the other front end may take for a change: longer than it takes to see that it stands still."""
_LONGEST_LOG_BYTES = 4 << 20
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BESIDE = ("", "-wal", "-shm")

_TABLE = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, bytes INTEGER NOT NULL, used INTEGER NOT NULL,
    body BLOB NOT NULL, conversation BLOB NOT NULL
)"""
_INDEX = "CREATE INDEX IF NOT EXISTS by_use ON responses (used, bytes)"
_NEXT_USE = "(SELECT coalesce(max(used), 0) + 1 FROM responses)"
_PUT = f"INSERT OR REPLACE INTO responses VALUES (?, ?, ?, {_NEXT_USE}, ?, ?)"
_TOUCH = f"UPDATE responses SET used = {_NEXT_USE} WHERE id = ?"
_SHRINK = """
DELETE FROM responses WHERE used IN (
    SELECT used FROM (
        SELECT used, row_number() OVER newest AS place, sum(bytes) OVER newest AS held
        FROM responses WINDOW newest AS (ORDER BY used DESC)
    ) WHERE place > ? OR held > ?
)"""

Result = TypeVar("Result")


class _Damaged(sqlite3.DatabaseError):
    """The file is no store of ours."""


class DiskStore:
    """Bounded in number and in bytes; what was used last stays longest. Raises TROUBLE where the file cannot be used;
    a damaged one is set aside, and another one begun."""

    def __init__(self, file: Path, most_entries: int, most_bytes: int) -> None:
        self._file = file
        self._most = (most_entries, most_bytes)
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """What is there already is cut to today's limits."""
        self._run(lambda connection: connection.execute(_SHRINK, self._most))

    def put(self, response_id: str, entry: StoredResponse) -> None:
        row = (response_id, entry.owner, entry.size, entry.body, entry.conversation)

        def change(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.execute(_PUT, row)
                connection.execute(_SHRINK, self._most)

        self._run(change)

    def get(self, owner: str, response_id: str) -> StoredResponse | None:
        return self._run(lambda connection: self._found(connection, owner, response_id))

    def _found(self, connection: sqlite3.Connection, owner: str, response_id: str) -> StoredResponse | None:
        asked = "SELECT body, conversation FROM responses WHERE id = ? AND owner = ?"
        row = connection.execute(asked, (response_id, owner)).fetchone()
        if row is None:
            return None
        with contextlib.suppress(*TROUBLE):  # a full disk is no reason not to answer
            connection.execute(_TOUCH, (response_id,))
        return _checked(response_id, StoredResponse(owner, *row))

    def remove(self, owner: str, response_id: str) -> bool:
        """Once this returns, its text is in no file."""

        def change(connection: sqlite3.Connection) -> bool:
            asked = "DELETE FROM responses WHERE id = ? AND owner = ?"
            removed = connection.execute(asked, (response_id, owner)).rowcount
            # Until then the log may hold it.
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise sqlite3.OperationalError("another process keeps it locked")
            return bool(removed)

        return self._run(change)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.close()

    def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            return work(self._opened())
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._set_aside(str(error))
        return work(self._opened())

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _connect(self._file)
        return self._connection

    def _set_aside(self, reason: str) -> None:
        self.close()
        aside = self._file.with_name(f"{self._file.name}.damaged")
        for ending in _BESIDE:
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self._file}{ending}", f"{aside}{ending}")
        log.warning("stored responses are lost: %s (%s); it was set aside as %s", self._file, reason, aside)


def remove_store(file: Path) -> None:
    """For a server that is to keep nothing, also not what was kept before."""
    for ending in _BESIDE:
        Path(f"{file}{ending}").unlink(missing_ok=True)


def _connect(file: Path) -> sqlite3.Connection:
    private_folder(file.parent)
    # SQLite gives the files beside it the same mode.
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    connection = sqlite3.connect(file, timeout=_LOCKED_SECONDS, isolation_level=None)
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    for setting in (
        "auto_vacuum = FULL",  # before there is a table
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "secure_delete = ON",
        "temp_store = MEMORY",
        "trusted_schema = OFF",
        f"journal_size_limit = {_LONGEST_LOG_BYTES}",
    ):
        connection.execute(f"PRAGMA {setting}").fetchall()
    with _transaction(connection):
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found not in (0, _FORMAT):
            raise _Damaged(f"format {found}, which this version does not know")
        connection.execute(_TABLE)
        connection.execute(_INDEX)
        connection.execute(f"PRAGMA user_version = {_FORMAT}")


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.rollback()
        raise


def _checked(response_id: str, entry: StoredResponse) -> StoredResponse:
    """What we wrote reads as what it was; anything else is damage."""
    try:
        whole = json.loads(entry.body)["id"] == response_id and all(isinstance(each, dict) for each in entry.messages)
    except (ValueError, TypeError, LookupError, RecursionError):
        whole = False
    if not whole:
        raise _Damaged(f"{response_id} is not what was stored")
    return entry


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return isinstance(error, _Damaged) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
