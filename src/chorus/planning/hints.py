"""What to change when a model does not fit. Pure: each proposal is tried before it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chorus.planning.nodes import usable_memory
from chorus.planning.problem import Problem

Fits = Callable[[Problem], bool]

_BITS = ((8, 8.5), (4, 4.5))
"""Bits as people name them, and with their scales."""
_SIZES_GB = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
_USABLE = 0.8
_SHORTEST_CONTEXT = 1024


def hints_for(problem: Problem, fits: Fits) -> tuple[str, ...]:
    """The proposals that help: fewer bits, a shorter context or fewer requests at a time, another machine."""
    proposals = (_fewer_bits(problem, fits), _shorter(problem, fits), _more(problem, fits))
    return tuple(proposal for proposal in proposals if proposal)


def _fewer_bits(problem: Problem, fits: Fits) -> str | None:
    facts = problem.facts
    bits_now = 8 * facts.total.stored / max(1, facts.total.elements)
    for bits, with_scales in _BITS:
        if with_scales < bits_now * 0.9 and fits(replace(problem, facts=facts.shrunk_to_bits(with_scales))):
            return f"{_article(bits)} {bits}-bit version fits"
    return None


def _shorter(problem: Problem, fits: Fits) -> str | None:
    work = problem.work

    def fits_with(**changed: Any) -> bool:
        return fits(replace(problem, work=replace(work, **changed)))

    if work.concurrency > 1 and fits_with(concurrency=1):
        most = max(count for count in range(1, work.concurrency) if fits_with(concurrency=count))
        return f"with {most} at a time instead of {work.concurrency} it fits"
    context = work.context // 2
    while context >= _SHORTEST_CONTEXT:
        if fits_with(context=context):
            return f"with a context of {context} it fits"
        context //= 2
    return None


def _more(problem: Problem, fits: Fits) -> str | None:
    pattern = max(problem.nodes, key=lambda node: node.memory)
    for gigabytes in _SIZES_GB:
        added = replace(pattern, name="added", memory=usable_memory(pattern.backend, gigabytes * 10**9, _USABLE))
        if fits(replace(problem, nodes=[*problem.nodes, added])):
            return f"add {_article(gigabytes)} {gigabytes} GB node"
    return None


def _article(number: int) -> str:
    return "an" if str(number).startswith("8") else "a"
