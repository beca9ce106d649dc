"""Exit codes by which a process tells whoever started it what to do next."""

from __future__ import annotations

import logging
from pathlib import Path

from chorus.platform.storage.files import write_if_possible

EXIT_RANK_LOST = 71
"""Of a leader: the group is broken, start all of it again."""
EXIT_NO_MEMORY = 72
"""There was too little memory for what it had to do."""
EXIT_FAULT = 73
"""It could not go on after an error, its own or its group's, for which what was computed may be to blame."""
EXIT_LEADER_GONE = 75
"""A process belongs to one collective group for good: to follow another leader, it only must be started again."""
EXIT_CANNOT_START = 78
"""Another try would fail the same way: give up."""

_log = logging.getLogger("chorus.start")


def cannot_start(reason: str, failure_file: Path | None = None) -> int:
    """Say why, on the log and to whoever started this process: the exit code for it."""
    _log.error("cannot start: %s", reason)
    return leave_reason(reason, failure_file)


def leave_reason(reason: str, failure_file: Path | None) -> int:
    if failure_file:
        write_if_possible(failure_file, reason.encode(), "the reason stands only here")
    return EXIT_CANNOT_START
