"""Too little memory: how MLX says it, and how Linux does, which ends the process and says nothing to it."""

from __future__ import annotations

from pathlib import Path

from chorus.platform import cgroup, system

_WORDS = ("unable to allocate", "attempting to allocate", "out of memory", "insufficient memory", "bad_alloc")
"""Of MLX's allocators, of CUDA, of Metal and of the C++ library. (Where only a CPU computes, MLX crashes instead.)"""

LATELY_SECONDS = 30.0
"""How long a process that is being killed may take to end: gigabytes are given back first."""


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, says that there was too little memory."""
    if error is None:
        return False
    told = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _says_so(str(error).lower()))
    return told or out_of_memory(error.__cause__)


def _says_so(words: str) -> bool:
    return any(each in words for each in _WORDS)


class MemoryKills:
    """Whether Linux has lately ended a process for its memory. Elsewhere nobody tells."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._file = cgroup.memory_kills_file(root) if system.is_linux() else None
        self._count = self._counted()
        self._moved_at: float | None = None

    def look(self, now: float) -> None:
        """To be called often: it is from the change that the time of a kill is known."""
        if (count := self._counted()) != self._count:
            self._count, self._moved_at = count, now

    def lately(self, now: float) -> bool:
        self.look(now)
        return self._moved_at is not None and now - self._moved_at <= LATELY_SECONDS

    def _counted(self) -> int | None:
        return cgroup.memory_kills(self._file) if self._file else None
