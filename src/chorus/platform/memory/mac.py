"""How much memory a Mac has for a model: what its kernel says, read anew each time, and what follows from that.

psutil's `available` is of no use there: it counts free and inactive pages only, and macOS keeps few of either. Nor is
a share of the machine's memory: what the GPU may hold, its working set, is less than most shares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import psutil

from chorus.platform import system
from chorus.platform.sizes import size

GIB = 1 << 30
RESERVE = 2 * GIB
"""What stays of a working set beside weights and cache: activations, and freed buffers that MLX keeps."""
MOST_FREED_BUFFERS = GIB
_SMALL_MAC = 36 * GIB
_UNAVAILABLE_PAGES = ("Pages wired down", "Anonymous pages", "Pages occupied by compressor")


@dataclass(frozen=True)
class MacFigures:
    """What a Mac says of its memory, in bytes but for the level."""

    total: int
    level: int | None = None
    """Percent of the memory that macOS calls available: all that is neither wired nor compressed."""
    taken: int | None = None
    """Wired, compressed and anonymous pages; what else there is holds parts of files, and is given back on demand."""
    raised: int = 0
    """What `iogpu.wired_limit_mb` lets the GPU hold; 0 where macOS decides."""


@dataclass(frozen=True)
class Budget:
    """What a rank may take of a Mac's memory in all, decided before it loads."""

    room: int
    free: int
    working_set: int

    def __str__(self) -> str:
        return (
            f"{size(self.room)} for weights and cache ({size(self.free)} are free, and of the GPU's working set of "
            f"{size(self.working_set)} {size(RESERVE)} are kept for activations)"
        )


REMEDY = (
    "close other programs, choose a model with fewer bits or parameters, spread it over more machines, or let the GPU "
    "hold more with: sudo sysctl iogpu.wired_limit_mb=…"
)


def read_figures() -> MacFigures:
    total = _number(system.sysctl("hw.memsize")) or psutil.virtual_memory().total
    level = _number(system.sysctl("kern.memorystatus_level"))
    raised = _number(system.sysctl("iogpu.wired_limit_mb")) or 0
    known = level is not None and level <= 100
    return MacFigures(
        total=total,
        level=level if known else None,
        taken=None if known else pages_taken(system.told("vm_stat")),
        raised=min(raised << 20, total),
    )


def free_memory(mac: MacFigures) -> int:
    """What a model that loads now can have: macOS makes room by compressing what other programs do not use."""
    if mac.level is not None:
        return mac.total * mac.level // 100
    if mac.taken is not None:
        return max(0, mac.total - mac.taken)
    return mac.total // 2  # neither its kernel nor its tools answer: a guess that hardly harms


def stock_working_set(total: int) -> int:
    """What the GPU of a Mac of this size may hold at least, where neither Metal nor its owner said."""
    return total * 2 // 3 if total <= _SMALL_MAC else total * 3 // 4


def working_set(stock: int, raised: int) -> int:
    """What the GPU may hold: as its owner set it, or as macOS does."""
    return raised or stock


def budget(free: int, working_set: int, fraction: float, ranks: int = 1) -> Budget:
    """The fraction leaves memory to other programs; the working set is a bound of its own. Ranks of one Mac share
    both; their fraction is divided already."""
    return Budget(max(0, min(int(free * fraction), (working_set - RESERVE) // ranks)), free, working_set)


def wired_limit(working_set: int, weights: int, cache: int) -> int:
    """How much of what MLX holds stays in memory for good: all that a model needs, but never all that there is."""
    return min(working_set, weights + cache + RESERVE)


def freed_buffers_limit(working_set: int) -> int:
    """How many bytes of freed buffers MLX may keep for the next time; by itself it keeps nearly a working set."""
    return min(MOST_FREED_BUFFERS, working_set // 8)


def pages_taken(vm_stat: str) -> int | None:
    """Bytes that `vm_stat` says cannot be had; None where it does not say."""
    page = re.search(r"page size of (\d{1,7}) bytes", vm_stat)
    counts = [re.search(rf"^{name}:\s+(\d{{1,15}})\.?\s*$", vm_stat, re.MULTILINE) for name in _UNAVAILABLE_PAGES]
    if page is None or not all(counts):
        return None
    return int(page[1]) * sum(int(count[1]) for count in counts if count)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else None
