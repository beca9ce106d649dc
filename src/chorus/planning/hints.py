"""What to change when a model does not fit. Pure: each proposal is tried before it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from chorus.planning.costs import Node, Workload
from chorus.planning.facts import ModelFacts

Fits = Callable[[ModelFacts, Sequence[Node], Workload], bool]

_BITS = ((8, 8.5), (4, 4.5))
"""Bits as people name them, and with their scales."""
_SIZES_GB = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
_USABLE = 0.8
_SHORTEST_CONTEXT = 1024


def hints_for(facts: ModelFacts, nodes: Sequence[Node], work: Workload, fits: Fits) -> tuple[str, ...]:
    proposals = (
        _fewer_bits(facts, nodes, work, fits),
        _shorter(facts, nodes, work, fits),
        _more(facts, nodes, work, fits),
    )
    return tuple(proposal for proposal in proposals if proposal)


def _fewer_bits(facts: ModelFacts, nodes: Sequence[Node], work: Workload, fits: Fits) -> str | None:
    bits_now = 8 * facts.total.stored / max(1, facts.total.elements)
    for bits, with_scales in _BITS:
        if with_scales < bits_now * 0.9 and fits(facts.shrunk_to_bits(with_scales), nodes, work):
            return f"{_article(bits)} {bits}-bit version fits"
    return None


def _shorter(facts: ModelFacts, nodes: Sequence[Node], work: Workload, fits: Fits) -> str | None:
    if work.concurrency > 1 and fits(facts, nodes, replace(work, concurrency=1)):
        most = max(
            count for count in range(1, work.concurrency) if fits(facts, nodes, replace(work, concurrency=count))
        )
        return f"with {most} at a time instead of {work.concurrency} it fits"
    context = work.context // 2
    while context >= _SHORTEST_CONTEXT:
        if fits(facts, nodes, replace(work, context=context)):
            return f"with a context of {context} it fits"
        context //= 2
    return None


def _more(facts: ModelFacts, nodes: Sequence[Node], work: Workload, fits: Fits) -> str | None:
    pattern = max(nodes, key=lambda node: node.memory)
    for gigabytes in _SIZES_GB:
        added = replace(pattern, name="added", memory=int(gigabytes * 1e9 * _USABLE))
        if fits(facts, [*nodes, added], work):
            return f"add {_article(gigabytes)} {gigabytes} GB node"
    return None


def _article(number: int) -> str:
    return "an" if str(number).startswith("8") else "a"
