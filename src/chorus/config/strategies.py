"""The strategies by which a model is divided among machines; `chorus.planning.strategies` has what each does."""

from __future__ import annotations

from typing import Literal

from chorus.transport import catalog

Strategy = Literal["auto", "balanced", "uniform", "memory_proportional", "compute_proportional", "custom"]

STRATEGIES: dict[Strategy, str] = {
    "auto": "whatever answers a request soonest: one machine, a pipeline in the best order, or tensor parallel; over "
    f"{catalog.offer(catalog.carrying('hybrid'))} also a hybrid",
    "balanced": "every rank takes equally long, as far as memory allows",
    "uniform": "as even as can be",
    "memory_proportional": "by the memory that ranks may take: 48 GB and 16 GB share 28 layers as 21 and 7",
    "compute_proportional": "by matrix rate",
    "custom": "by `custom_proportions`, or exactly as `layers` (or `engine.split`) says; refused when it does not fit",
}
"""What each does, as the documentation says it."""

WITHOUT_FIGURES: tuple[Strategy, ...] = ("auto", "uniform", "custom")
"""Those that need to know nothing of the machines' memory and speed."""
