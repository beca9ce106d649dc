"""Lines over a few steps as a picture (SVG), without a library for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 56, 48
COLORS = ("#0b6e99", "#d9730d", "#0f7b6c", "#6940a5")
_STEPS = (1, 2, 5, 10)
_TICKS = 6


def lines(title: str, across: str, up: str, steps: Sequence[object], series: Mapping[str, Sequence[float]]) -> str:
    """A line for each of the series, one figure for each step; the steps stand at equal distances."""
    tick = tick_size(max(max(figures) for figures in series.values()))
    top = tick * -(-max(max(figures) for figures in series.values()) // tick)
    places = [LEFT + (WIDTH - LEFT - RIGHT) * index / max(1, len(steps) - 1) for index in range(len(steps))]

    def height(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    parts = [_text(LEFT, 20, title, size=15)]
    for number in range(round(top / tick) + 1):
        value = number * tick
        y = height(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{value:g}", anchor="end"))
    for step, x in zip(steps, places, strict=True):
        parts.append(_text(x, HEIGHT - BOTTOM + 18, str(step), anchor="middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across, anchor="middle"))
    parts.append(_text(LEFT, 40, up))
    for index, (name, figures) in enumerate(series.items()):
        color = COLORS[index % len(COLORS)]
        points = [(x, height(figure)) for x, figure in zip(places, figures, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in points]
        parts.append(_text(WIDTH - RIGHT, 20 + 18 * index, name, anchor="end", color=color))
    drawn = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{drawn}\n</svg>\n'
    )


def stacked(pictures: Sequence[str]) -> str:
    """Several of these, one below the other."""
    placed = "".join(
        picture.replace("<svg ", f'<svg y="{HEIGHT * number}" width="{WIDTH}" height="{HEIGHT}" ', 1)
        for number, picture in enumerate(pictures)
    )
    box = f'viewBox="0 0 {WIDTH} {HEIGHT * len(pictures)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>\n{placed}</svg>\n'


def tick_size(largest: float) -> float:
    """A round number of which at most a few reach the largest figure."""
    power = 1e-9
    while largest > power * _STEPS[-1] * _TICKS:
        power *= 10
    return next(power * step for step in _STEPS if largest <= power * step * _TICKS)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, color: str = "#333") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {place} fill="{color}">{escape(text)}</text>'
