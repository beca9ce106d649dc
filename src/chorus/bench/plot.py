"""Speed and first token against the number of streams, as a picture; needs matplotlib, an extra of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from chorus.bench.figures import Figures, figures
from chorus.bench.measure import Case, Results
from chorus.errors import ChorusError

_SIZE = (11.0, 4.5)
_DOTS = 120


class CannotPlot(ChorusError):
    """There is no picture: says why, and the remedy."""


def check_can_plot(file: Path) -> None:
    """Before anything is measured: afterwards it would be a pity."""
    if file.suffix.lower() != ".png":
        raise CannotPlot(f"--plot {file}: the picture is a PNG, call it {file.with_suffix('.png').name}")
    if importlib.util.find_spec("matplotlib") is None:
        raise CannotPlot("--plot needs matplotlib: pip install matplotlib (or Chorus with its extra [plot])")


def series(results: Results) -> dict[str, list[tuple[int, Figures]]]:
    """A line for each length of prompts, and for agents: the figures by how many there were at once."""
    found: dict[str, list[tuple[int, Figures]]] = {}
    for measured in results.measured:
        found.setdefault(_name(measured.case), []).append((measured.case.together, figures(measured.rounds)))
    return {name: sorted(points, key=lambda point: point[0]) for name, points in found.items()}


def draw(results: Results, title: str, file: Path) -> None:
    from matplotlib.figure import Figure  # takes half a second, and only this needs it

    picture = Figure(figsize=_SIZE, dpi=_DOTS, layout="constrained")
    picture.suptitle(title, parse_math=False)
    speed, first = picture.subplots(1, 2)
    for name, points in series(results).items():
        _line(speed, name, [(x, found.decode_tokens_per_second) for x, found in points])
        _line(first, name, [(x, found.first_token_seconds) for x, found in points])
    for axes, heading in ((speed, "tokens per second while all decode"), (first, "seconds to the first token, median")):
        axes.set_title(heading)
        axes.set_xlabel("streams at once")
        axes.set_ylim(bottom=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    picture.savefig(file, format="png")


def _line(axes: Any, name: str, points: list[tuple[int, float | None]]) -> None:
    """Drawn where there is a figure; a name without one still stands in the legend."""
    known = [(x, y) for x, y in points if y is not None]
    axes.plot([x for x, _ in known], [y for _, y in known], marker="o", label=name)


def _name(case: Case) -> str:
    if case.turns is None:
        return f"prompts of {case.prompt_tokens:,} tokens"
    return f"agents, {case.turns} turns of {case.prompt_tokens:,} tokens"
