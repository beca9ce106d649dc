"""Random conversations that share their beginnings: a small index of what is stored, as a leader has one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import mlx.core as mx

from chorus.messages.rank import Drop, Evict, Fork, Part, Split, Store
from tests.rank.cache.chain import Chain
from tests.support.architectures import VOCABULARY
from tests.support.architectures.facts import difference


@dataclass
class Node:
    number: int
    tokens: list[int]
    parent: Node | None
    state: bool
    children: list[Node] = field(default_factory=list)

    @property
    def path(self) -> list[Node]:
        return [*(self.parent.path if self.parent else []), self]

    @property
    def prefix(self) -> list[int]:
        return [token for node in self.path for token in node.tokens]


class Conversations:
    """Does something at random each turn, and compares what a forked sequence answers with a fresh run."""

    def __init__(self, chain: Chain, seed: int) -> None:
        self.worst = 0.0
        self._chain, self._random = chain, random.Random(seed)
        self._keeping = chain.keeping
        self._nodes: list[Node] = []
        self._numbers = 0

    def turn(self) -> None:
        choice = self._random.random()
        if self._nodes and choice < 0.2:
            self._split(self._random.choice(self._nodes))
        elif self._nodes and choice < 0.35:
            self._evict()
        else:
            self._converse()

    def _converse(self) -> None:
        sequence, chain, draw = self._number(), self._chain, self._random
        at, parts = self._fork_point()
        tokens = at.prefix[: sum(part.length for part in parts)] if at else []
        if parts:
            chain.operate(Fork(sequence, parts))
        # Storing goes on at the end of a node only, so that the index stays a tree.
        parent = at if at and len(at.prefix) == len(tokens) else None
        stores, logits = parent is not None or not parts, mx.zeros((0,))
        for _ in range(draw.randint(1, 3)):
            new = [draw.randrange(VOCABULARY) for _ in range(draw.choice((1, 1, 2, 5, 9)))]
            logits = chain.feed(sequence, new, begins=not tokens)
            start, tokens = len(tokens), [*tokens, *new]
            if stores:
                parent = self._store(sequence, start, tokens, parent)
        self.worst = max(self.worst, difference(logits, self._fresh(tokens)))
        chain.operate(Drop(sequence))

    def _fresh(self, tokens: list[int]) -> mx.array:
        sequence = self._number()
        logits = self._chain.feed(sequence, tokens, begins=True)
        self._chain.operate(Drop(sequence))
        return logits

    def _fork_point(self) -> tuple[Node | None, tuple[Part, ...]]:
        """A node, or a place inside it where what is stored can be cut."""
        if not self._nodes or self._random.random() < 0.2:
            return None, ()
        node = self._random.choice(self._nodes)
        path = [Part(above.number, len(above.tokens)) for above in node.path]
        cut = self._random.randint(1, len(node.tokens))
        if self._keeping.anywhere or (node.state and len(node.prefix) <= self._keeping.reach):
            path[-1] = Part(node.number, cut)
        elif not node.state:
            return None, ()
        return node, tuple(path)

    def _store(self, sequence: int, start: int, tokens: list[int], parent: Node | None) -> Node:
        state = not self._keeping.anywhere and self._random.random() < 0.8
        node = Node(self._number(), tokens[start:], parent, state)
        self._chain.operate(Store(sequence, node.number, start, len(tokens), state))
        if parent:
            parent.children.append(node)
        self._nodes.append(node)
        return node

    def _split(self, node: Node) -> None:
        if len(node.tokens) == 1:
            return
        at = self._random.randrange(1, len(node.tokens))
        rest = Node(self._number(), node.tokens[at:], node, node.state, node.children)
        self._chain.operate(Split(node.number, at, rest.number))
        for child in rest.children:
            child.parent = rest
        node.tokens, node.state, node.children = node.tokens[:at], False, [rest]
        self._nodes.append(rest)

    def _evict(self) -> None:
        leaf = self._random.choice([node for node in self._nodes if not node.children])
        self._chain.operate(Evict(leaf.number))
        self._nodes.remove(leaf)
        if leaf.parent:
            leaf.parent.children.remove(leaf)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers
