"""Which prefixes are stored, found again, and forgotten: decided here, once, and done by every rank as operations of a
step. So every rank has the same hit, however the model is divided.

A sequence forks what is stored: it gets a copy and goes its own way. Nothing that is stored is ever in use, so that
anything may be forgotten at any time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from chorus.engine.prefix import tree
from chorus.engine.prefix.disk import Asked, DiskIndex
from chorus.engine.prefix.saved import Saved
from chorus.engine.prefix.tree import Match, Node
from chorus.engine.room import NOTHING, UNLIMITED, Room, Use
from chorus.messages.rank import Evict, Fork, Keeping, Operation, Part, Restore, Save, Split, Store

WORTH_A_CUT = 16
"""A state that saves fewer tokens than this is not worth the forward that it costs to stop there."""
IDLE_SECONDS = 2.0
"""What nobody has stored or read for so long is written to disk, where there is one for it."""
MAX_TOKENS = 8 << 20
MAX_ENTRIES = 1 << 16
"""However cheap they are for the ranks: the tree itself takes memory too."""


@dataclass(frozen=True, slots=True)
class Hit:
    """What a new sequence may begin with."""

    length: int = 0
    parts: tuple[Part, ...] = ()
    nodes: tuple[Node, ...] = ()
    logits: int = 0
    """The segment with which the logits behind it are kept, where it is all of the prompt."""
    cut: int | None = None
    """Where earlier requests and this one part, if nothing was kept there to begin from: worth a stop this time."""


@dataclass(frozen=True, slots=True)
class Limits:
    tokens: int = MAX_TOKENS
    entries: int = MAX_ENTRIES
    pin_seconds: float = 3600.0


@dataclass(slots=True)
class Counts:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    evicted_tokens: int = 0


@dataclass(slots=True)
class PrefixIndex:
    keeping: Keeping
    room: Room = UNLIMITED
    limits: Limits = field(default_factory=Limits)
    clock: Callable[[], float] = time.monotonic
    counts: Counts = field(default_factory=Counts)
    use: Use = NOTHING
    """Of all that is stored."""
    entries: int = 0
    _roots: dict[str, Node] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    version: int = 0
    """Changes whenever something is stored or forgotten."""
    disk: DiskIndex | None = None

    def find(self, scope: str, tokens: Sequence[int]) -> Hit:
        """The longest beginning to go on from. At least one token is left, since only a forward makes the next, unless
        the logits of a whole prompt were kept.
        """
        top = self._roots.get(scope)
        if top is None:
            return Hit()
        found, most = tree.match(top, tokens), len(tokens) - 1
        if self.keeping.anywhere:
            return _hit(found, min(found.length, most))
        end = found.end
        if found.length == len(tokens) == end.stop and end.logits and end.state is not None:
            return _hit(found, len(tokens), end.state, logits=end.state)
        shared = min(found.length, most)
        if hit := self._windows(found, shared):
            return hit
        kept = [node for node in found.nodes if node.state is not None and node.stop <= shared]
        begin = kept[-1].stop if kept else 0
        cut = shared if shared - begin >= WORTH_A_CUT else None
        if not kept:
            return Hit(cut=cut)
        return _hit(found, begin, kept[-1].state, cut)

    def _windows(self, found: Match, shared: int) -> Hit | None:
        """Windows that are not full yet hold everything: a state further on serves for any length before it."""
        if not shared or not self.keeping.reach:
            return None
        for node in found.end.below():
            if node.state is not None and node.stop <= self.keeping.reach:
                return _hit(found, shared, node.state)
        return None

    def fork(self, sequence: int, hit: Hit, pinned: bool = False) -> Fork:
        for node in hit.nodes:
            node.uses += 1
        self._touch(hit.nodes, pinned)
        return Fork(sequence, hit.parts)

    def store(
        self,
        scope: str,
        tokens: Sequence[int],
        sequence: int,
        *,
        state: bool = False,
        logits: bool = False,
        pinned: bool = False,
    ) -> list[Operation]:
        """Keep what a sequence has fed, `tokens`. With `state` its windows and states stand there now; with `logits`
        the leader has those behind them at hand.
        """
        if not tokens:
            return []
        top = self._roots.setdefault(scope, tree.root(scope))
        found = tree.match(top, tokens)
        operations: list[Operation] = []
        end = found.end
        if found.length < end.stop:
            operations.append(self._split(end, found.length - end.start))
        if found.length < len(tokens):
            end = tree.add(end, tuple(tokens[found.length :]))
            end.segment, end.makers = self._number(), frozenset({sequence})
            operations.append(Store(sequence, end.segment, end.start, end.stop))
            self._count(len(end.tokens), 0, 1)
        if state and not self.keeping.anywhere and end.state is None:
            end.state = self._number()
            end.makers |= {sequence}
            end.logits = logits
            operations.append(Store(sequence, end.state, end.stop, end.stop, state=True, logits=logits))
            self._count(0, 1, 1)
        self._touch(end.path(), pinned)
        return operations

    def _touch(self, nodes: Iterable[Node], pinned: bool) -> None:
        now = self.clock()
        for node in nodes:
            node.used = now
            if pinned:
                node.pinned_until = now + self.limits.pin_seconds

    def wanted(self, scope: str, tokens: Sequence[int]) -> Use:
        """What storing these tokens would take besides what is stored, at most."""
        top = self._roots.get(scope)
        known = tree.match(top, tokens).length if top else 0
        return Use(len(tokens) - known, not self.keeping.anywhere)

    # What goes to disk and comes from there.

    def idle_saves(self) -> list[Operation]:
        """Files of what nobody has asked for in a while, so that it outlives this process. Each is tried once: what the
        disk has no room for would be written for ever.
        """
        if self.disk is None:
            return []
        since = self.clock() - IDLE_SECONDS
        nodes = (node for top in self._roots.values() for node in top.below() if node.parent and node.used < since)
        return [operation for node in nodes if not node.written for operation in self._save(node)]

    def _save(self, node: Node) -> list[Operation]:
        """Files of a node and of all before it, as far as there are none, or none any more."""
        if self.disk is None:
            return []
        now, operations = self.clock(), list[Operation]()
        for each in node.path():
            before = each.parent.file if each.parent else None
            if not self.disk.holds(each.file) and (before or not each.start):
                each.file, new = self.disk.file(each.scope, each.whole(), each.start, before, now)
                operations += [Save(each.segment, each.file.key)] if each.file and new else []
            if each.state is not None and each.file and not self.disk.holds(each.state_file):
                each.state_file, new = self.disk.file(each.scope, each.whole(), each.stop, each.file, now)
                operations += [Save(each.state, each.state_file.key)] if each.state_file and new else []
        return operations

    def restore(self, files: Iterable[Saved]) -> list[Operation]:
        """Have them read; `placed` comes when every rank has."""
        operations: list[Operation] = []
        for file in files:
            number = self._number()
            if self.disk and self.disk.ask(file, self.clock(), number):
                self._count(len(file.tokens), not file.tokens, 1)
                operations.append(Restore(number, file.key))
        return operations

    def placed(self, asked: Asked) -> list[Operation]:
        """What all ranks have read takes its place in the tree, if that is still free and nothing before it is gone."""
        file, segment = asked.file, asked.segment
        path = file.path()
        top = self._roots.setdefault(file.scope, tree.root(file.scope))
        found = tree.match(top, path)
        end = found.end
        if not asked.failed and not file.tokens:
            if found.length == len(path) == end.stop and end.state is None:
                end.state, end.state_file, end.used = segment, file, self.clock()
                return []
        elif not asked.failed and file.start <= found.length < file.stop:
            operations: list[Operation] = []
            if found.length < end.stop:
                operations.append(self._split(end, found.length - end.start))
            if double := found.length - file.start:
                rest = self._number()
                operations += [Split(segment, double, rest), Evict(segment)]
                self._count(-double, 0, 0)
                segment = rest
            node = tree.add(end, path[found.length :])
            node.segment, node.file, node.used = segment, file, self.clock()
            return operations
        self._count(-len(file.tokens), -(not file.tokens), -1)
        return [Evict(segment)]

    def forget(self, sequences: Iterable[int]) -> list[Operation]:
        """What was taken from sequences whose step failed may be half written: it goes, and all that stands on it."""
        failed = set(sequences)
        spoilt = [node for top in self._roots.values() for node in top.below() if node.makers & failed]
        gone: list[Operation] = []
        for node in sorted(spoilt, key=lambda node: -node.start):
            for below in sorted(node.below(), key=lambda below: -below.start):
                gone += self._remove(below)
        return gone

    def clear(self) -> list[Operation]:
        nodes = [node for top in self._roots.values() for node in top.below() if node.parent]
        gone = [operation for node in sorted(nodes, key=lambda n: -n.start) for operation in self._remove(node)]
        self._roots.clear()
        return gone

    def make_room(self, beside: Use) -> list[Operation]:
        """Forget the least worthy until the rest fits beside what streams take; all of it may go."""
        gone: list[Operation] = []
        # One look at all nodes serves for many: whoever becomes a leaf by it has its turn in the next.
        while not self._fits(beside) and (removable := list(self._removable())):
            now = self.clock()
            for node in sorted(removable, key=lambda node: self._worth(node, now)):
                if self._fits(beside):
                    break
                gone += self._save(node)
                gone += self._drop_state(node) if node.children else self._remove(node)
        return gone

    def _fits(self, beside: Use) -> bool:
        within = self.use.tokens <= self.limits.tokens and self.entries <= self.limits.entries
        return within and self.room.holds(self.use + beside)

    def _removable(self) -> Iterator[Node]:
        """Leaves, and what has a state to give up."""
        nodes = (node for top in self._roots.values() for node in top.below() if node.parent)
        return (node for node in nodes if not node.children or node.state is not None)

    def _worth(self, node: Node, now: float) -> tuple[bool, float]:
        """What it saves for its bytes, the less the longer nobody has asked for it; whoever is pinned goes last."""
        if self.keeping.anywhere:
            saved, size = len(node.tokens), self.room.size(len(node.tokens), 0)
        else:
            before = max((n.stop for n in node.path()[:-1] if n.state is not None), default=0)
            saved = node.stop - before if node.state is not None else 0
            tokens = 0 if node.children else len(node.tokens)
            size = self.room.size(tokens, node.state is not None)
        age = now - node.used
        return node.pinned_until > now, saved * (1 + node.uses) / (max(size, 1e-12) * (1.0 + age))

    def _split(self, node: Node, at: int) -> Split:
        rest = tree.split(node, at)
        rest.segment = self._number()
        self._count(0, 0, 1)
        return Split(node.segment, at, rest.segment)

    def _remove(self, node: Node) -> list[Operation]:
        gone: list[Operation] = self._drop_state(node) if node.state is not None else []
        if node.parent is None or node.parent.children.get(node.tokens[0]) is not node:
            return gone
        tree.remove(node)
        self._count(-len(node.tokens), 0, -1)
        self.counts.evicted_tokens += len(node.tokens)
        return [*gone, Evict(node.segment)]

    def _drop_state(self, node: Node) -> list[Operation]:
        assert node.state is not None
        number, node.state, node.logits = node.state, None, False
        self._count(0, -1, -1)
        return [Evict(number)]

    def _count(self, tokens: int, states: int, entries: int) -> None:
        self.use = Use(self.use.tokens + tokens, self.use.states + states)
        self.entries += entries
        self.version += 1

    def _number(self) -> int:
        return next(self._numbers)


def _hit(found: Match, length: int, state: int | None = None, cut: int | None = None, logits: int = 0) -> Hit:
    if not length:
        return Hit(cut=cut)
    nodes = tuple(node for node in found.nodes if node.start < length)
    parts = [Part(node.segment, min(length, node.stop) - node.start) for node in nodes]
    if state is not None:
        parts.append(Part(state, 0))
    return Hit(length, tuple(parts), nodes, logits, cut)
