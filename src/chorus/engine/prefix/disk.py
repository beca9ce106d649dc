"""What lies on the ranks' disks, as the leader knows it: found again when memory has forgotten it, or after a restart.

A file on each rank holds its part of one run of tokens, under a name that follows from all tokens up to its end. The
leader writes down which there are; after a restart those count that every rank still holds. Whether a file can be read
shows when it is: what fails on one rank is forgotten on all.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from chorus.engine.prefix import tree
from chorus.engine.prefix.saved import Saved, key_of
from chorus.engine.prefix.tree import Node, Tokens
from chorus.messages.rank import Keeping
from chorus.security.node_folder import write_private

log = logging.getLogger("chorus.engine")

MAX_FILES = 1 << 16
MAX_ASKED = 64
"""Files that are being read or written at a time."""
WORTH_READING = 64
"""Fewer tokens than this are computed sooner than a file is opened."""
MEMORY_OF_RATES = 0.8
"""How much of what was measured before counts beside the newest."""


@dataclass(slots=True)
class Rate:
    """How long tokens take, as measured: many at a time say more than few."""

    taken: float = 0.0
    tokens: float = 0.0

    @property
    def seconds(self) -> float:
        """Of one token; 0: not measured yet."""
        return self.taken / self.tokens if self.tokens else 0.0

    def note(self, seconds: float, tokens: int) -> None:
        if tokens:
            self.taken = MEMORY_OF_RATES * self.taken + seconds
            self.tokens = MEMORY_OF_RATES * self.tokens + tokens

    def fade(self) -> None:
        """It was too slow to be used, and so to be measured again: it may have become quicker."""
        self.taken *= MEMORY_OF_RATES


@dataclass(slots=True)
class Reading:
    """Files that are read side by side take the same time: what it is worth is all their tokens."""

    since: float
    tokens: int = 0
    failed: bool = False


@dataclass(slots=True)
class Asked:
    """What every rank was asked to write, or to read as a segment, until all have answered."""

    file: Saved
    segment: int
    """0: it was to be written."""
    waiting: set[int]
    failed: bool = False


@dataclass(slots=True)
class DiskIndex:
    keeping: Keeping
    ranks: int
    reading: Rate = field(default_factory=Rate)
    computing: Rate = field(default_factory=Rate)
    restored_tokens: int = 0
    changed: bool = False
    """Whether what is written down is out of date."""
    _roots: dict[str, Node] = field(default_factory=dict)
    _files: dict[str, Saved] = field(default_factory=dict)
    _at: dict[tuple[Node, bool], Saved] = field(default_factory=dict)
    """Which file holds a node's tokens, and (True) which its state."""
    _asked: dict[str, Asked] = field(default_factory=dict)
    _reading: Reading | None = None

    @property
    def files(self) -> int:
        return len(self._files)

    @property
    def asked(self) -> int:
        """How many files are being read or written."""
        return len(self._asked)

    def find(self, scope: str, tokens: Sequence[int], from_memory: int) -> list[Saved]:
        """The files that bring a prompt further than what memory has, where reading is quicker than computing."""
        top = self._roots.get(scope)
        if top is None:
            return []
        found, most = tree.match(top, tokens), len(tokens) - 1
        nodes = list(takewhile(lambda node: node.start < most and (node, False) in self._at, found.nodes))
        if not nodes:
            return []
        length = min(found.length, most, nodes[-1].stop)
        state: Saved | None = None
        if not self.keeping.anywhere:
            ends = [node for node in nodes if node.stop <= length and (node, True) in self._at]
            if not ends:
                return []
            nodes, state = nodes[: nodes.index(ends[-1]) + 1], self._at[ends[-1], True]
            length = ends[-1].stop
        if length - from_memory < WORTH_READING:
            return []
        if not self._quicker():
            self.reading.fade()
            return []
        files = list(dict.fromkeys(self._at[node, False] for node in nodes if node.stop > from_memory))
        return [*files, state] if state else files

    def _quicker(self) -> bool:
        return not (self.reading.seconds and self.computing.seconds) or self.reading.seconds < self.computing.seconds

    def file(self, scope: str, path: Tokens, start: int, before: Saved | None, now: float) -> tuple[Saved | None, bool]:
        """The file of a path's tokens from `start` on (of the state behind it, where none are left), and whether every
        rank has to be told to write it; None where too many are being written.
        """
        tokens = path[start:]
        key = key_of(scope, path, start, not tokens)
        if known := self._files.get(key):
            return known, False
        file = Saved(scope, start, tokens, before, key)
        return (file, True) if self.ask(file, now) else (None, False)

    def ask(self, file: Saved, now: float, segment: int = 0) -> bool:
        """Whether every rank is to be told to write it, or to read it as this segment; not what is asked already."""
        if file.key in self._asked or len(self._asked) >= MAX_ASKED:
            return False
        self._asked[file.key] = Asked(file, segment, set(range(self.ranks)))
        if segment and self._reading is None:
            self._reading = Reading(now)
        return True

    def holds(self, file: Saved | None) -> bool:
        """Whether it is on every disk, or about to be."""
        return file is not None and (file.key in self._files or file.key in self._asked)

    def reading_now(self, file: Saved) -> bool:
        return file.key in self._asked

    def answer(self, rank: int, key: str, ok: bool, now: float) -> Asked | None:
        """What one rank says of a file; given back when all have spoken."""
        asked = self._asked.get(key)
        if asked is None:
            if not ok and (gone := self._files.get(key)):
                self.drop(gone)  # it had to make room there
            return None
        asked.waiting.discard(rank)
        asked.failed |= not ok
        if asked.waiting:
            return None
        del self._asked[key]
        self.changed = True
        if asked.failed:
            self.drop(asked.file)
        elif not asked.segment:
            self.add(asked.file)
        else:
            self.restored_tokens += len(asked.file.tokens)
        if asked.segment:
            self._measure(asked, now)
        return asked

    def _measure(self, read: Asked, now: float) -> None:
        """Of reading, from the first file to the last. What could not be read says nothing about how long it takes."""
        assert self._reading is not None
        self._reading.tokens += len(read.file.tokens)
        self._reading.failed |= read.failed
        if any(asked.segment for asked in self._asked.values()):
            return
        if not self._reading.failed:
            self.reading.note(now - self._reading.since, self._reading.tokens)
        self._reading = None

    def add(self, file: Saved) -> None:
        """It is on every rank's disk."""
        if file.key in self._files or len(self._files) >= MAX_FILES:
            return
        path = file.path()
        node = self._node(file.scope, path)
        self._files[file.key] = file
        if not file.tokens:
            self._at[node, True] = file
            return
        for above in node.path():
            if above.start >= file.start:
                self._at[above, False] = file

    def _node(self, scope: str, path: Tokens) -> Node:
        """The node that ends where this path does, made where there is none."""
        top = self._roots.setdefault(scope, tree.root())
        found = tree.match(top, path)
        end = found.end
        if found.length < end.stop:
            rest = tree.split(end, found.length - end.start)
            for state in (False, True):
                if (end, state) in self._at:
                    self._at[rest, state] = self._at[end, state]
            self._at.pop((end, True), None)
        return tree.add(end, path[found.length :]) if found.length < len(path) else end

    def drop(self, file: Saved) -> None:
        """It cannot be read on some rank: neither can whatever needs it."""
        self.changed = True
        gone = {file}
        for other in sorted(self._files.values(), key=lambda f: f.start):
            if other.before in gone:
                gone.add(other)
        for other in gone:
            self._files.pop(other.key, None)
        self._at = {place: held for place, held in self._at.items() if held not in gone}
        self._prune()

    def clear(self) -> None:
        self._roots.clear()
        self._files.clear()
        self._at.clear()
        self.changed = True

    def _prune(self) -> None:
        """Nodes that no file holds make no prefix: they go, and all behind them."""
        for top in self._roots.values():
            for node in list(top.below()):
                if node.parent is None or (node, False) in self._at:
                    continue
                for below in sorted(node.below(), key=lambda n: -n.start):
                    self._at.pop((below, False), None)
                    self._at.pop((below, True), None)
                    if below.parent is not None and below.parent.children.get(below.tokens[0]) is below:
                        tree.remove(below)

    # Written down, and read again after a restart.

    def lines(self) -> Iterator[str]:
        """Each file behind those that it needs."""
        for file in sorted(self._files.values(), key=lambda f: (f.start, not f.tokens)):
            tokens = base64.b64encode(np.asarray(file.tokens, dtype=np.uint32).tobytes()).decode()
            before = file.before.key if file.before else ""
            entry = {"scope": file.scope, "start": file.start, "tokens": tokens, "before": before}
            yield json.dumps({**entry, "key": file.key})

    def read(self, lines: Iterable[str], held: set[str]) -> None:
        """Take up what an earlier leader wrote down, as far as every rank still holds it."""
        known: dict[str, Saved] = {}
        for line in lines:
            try:
                file = _parsed(json.loads(line), known)
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                log.warning("a line of the list of stored prefixes cannot be read and is left out")
                continue
            if file and file.key in held:
                known[file.key] = file
                self.add(file)


def _parsed(entry: dict[str, Any], known: dict[str, Saved]) -> Saved | None:
    """None where something before it is missing. Whose name is not that of its tokens is no file of ours."""
    before = known.get(entry["before"])
    if entry["before"] and before is None:
        return None
    tokens = tuple(map(int, np.frombuffer(base64.b64decode(entry["tokens"]), dtype=np.uint32)))
    file = Saved(str(entry["scope"]), int(entry["start"]), tokens, before, str(entry["key"]))
    path = file.path()
    if len(path) != file.stop or key_of(file.scope, path, file.start, not tokens) != file.key:
        raise ValueError("not what it says")
    return file


class FileList:
    """The leader's list of what all ranks have on disk, kept beside its own files."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self, index: DiskIndex, held: set[str]) -> None:
        try:
            # What is no text spoils its own line only.
            lines = self._file.read_text(errors="replace").splitlines()[:MAX_FILES]
        except OSError:
            lines = []
        index.read(lines, held)

    def write(self, index: DiskIndex) -> None:
        """If anything has changed."""
        if not index.changed:
            return
        index.changed = False
        try:
            write_private(self._file, "".join(f"{line}\n" for line in index.lines()).encode())
        except OSError as error:
            log.warning("the list of stored prefixes cannot be written: %s", error)
