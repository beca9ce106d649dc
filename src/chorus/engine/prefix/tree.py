"""A radix tree over token ids: each node is a run of tokens behind its parent's, and two children begin differently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chorus.engine.prefix.saved import Saved, Tokens


@dataclass(eq=False, slots=True)
class Node:
    tokens: Tokens
    """Those between its parent's end and its own."""
    start: int
    parent: Node | None
    segment: int = 0
    """Under which number the ranks hold the keys and values of its tokens."""
    state: int | None = None
    """Under which number they hold their windows and recurrent states at its end."""
    logits: bool = False
    """Whether the leader has the logits behind its end: who begins there has nothing to feed."""
    file: Saved | None = None
    """Where its tokens were written to disk."""
    state_file: Saved | None = None
    scope: str = ""
    children: dict[int, Node] = field(default_factory=dict)
    used: float = 0.0
    """When it was last stored or read."""
    uses: int = 0
    """How often it was read."""
    pinned_until: float = 0.0
    makers: frozenset[int] = frozenset()
    """The sequences whose cache it was taken from."""

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    @property
    def written(self) -> bool:
        """Whether ranks were told to write it, whatever has become of that."""
        return self.file is not None and (self.state is None or self.state_file is not None)

    def path(self) -> list[Node]:
        """From the first tokens to this node; the root, which has none, is left out."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def whole(self) -> Tokens:
        """All tokens up to its end."""
        return tuple(token for node in self.path() for token in node.tokens)

    def below(self) -> Iterator[Node]:
        """This node and all behind it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())


@dataclass(frozen=True, slots=True)
class Match:
    """How far a prompt is known: all of `nodes` but perhaps the end of the last one."""

    nodes: tuple[Node, ...]
    length: int
    end: Node
    """The last of them; the root where there is none."""


def root(scope: str = "") -> Node:
    return Node((), 0, None, scope=scope)


def match(top: Node, tokens: Sequence[int]) -> Match:
    nodes: list[Node] = []
    node, length = top, 0
    while length < len(tokens) and (child := node.children.get(tokens[length])):
        shared = common(child.tokens, tokens, length)
        nodes.append(child)
        length += shared
        if shared < len(child.tokens):
            break
        node = child
    return Match(tuple(nodes), length, nodes[-1] if nodes else top)


def common(run: Tokens, tokens: Sequence[int], at: int) -> int:
    """How many tokens of the run stand in `tokens` from `at` on."""
    size = min(len(run), len(tokens) - at)
    # Whole slices compare at the speed of C: halving finds the place where they part.
    if run[:size] == tuple(tokens[at : at + size]):
        return size
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        if run[low:middle] == tuple(tokens[at + low : at + middle]):
            low = middle
        else:
            high = middle
    return low


def add(parent: Node, tokens: Tokens) -> Node:
    child = Node(tokens, parent.stop, parent, scope=parent.scope)
    parent.children[tokens[0]] = child
    return child


def split(node: Node, at: int) -> Node:
    """The node keeps its first `at` tokens; answers the new one that has the rest, its state and its children."""
    rest = Node(
        node.tokens[at:],
        node.start + at,
        node,
        state=node.state,
        logits=node.logits,
        file=node.file,
        state_file=node.state_file,
        scope=node.scope,
        children=node.children,
        used=node.used,
        uses=node.uses,
        pinned_until=node.pinned_until,
        makers=node.makers,
    )
    for child in rest.children.values():
        child.parent = rest
    node.tokens, node.children = node.tokens[:at], {rest.tokens[0]: rest}
    node.state, node.state_file, node.logits = None, None, False
    return rest


def remove(node: Node) -> None:
    assert node.parent is not None, "the root stays"
    assert not node.children, "only leaves are removed"
    del node.parent.children[node.tokens[0]]
