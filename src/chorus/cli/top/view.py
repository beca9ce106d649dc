"""What `chorus top` draws, from what is known: as many lines as the screen has, whatever its size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from chorus.cli.top.snapshot import Row, Snapshot, phases, short_id, speed
from chorus.platform.sizes import size
from chorus.platform.terminal import harmless

MOST_MODEL_LINES = 6


@dataclass(frozen=True)
class Sort:
    """An order of requests: its name, and what stands first by it."""

    name: str
    key: Callable[[Row], Any]


SORTS = (
    Sort("age", lambda row: -(row.get("age_seconds") or 0)),
    Sort("tok/s", lambda row: -(row.get("tokens_per_second") or 0)),
    Sort("tokens", lambda row: -(row.get("generated_tokens") or 0)),
    Sort("prompt", lambda row: -(row.get("prompt_tokens") or 0)),
)


@dataclass(frozen=True)
class Choice:
    """What whoever watches has chosen with keys."""

    sort: int = 0
    selected: str = ""
    """The id of a request."""
    confirming: bool = False
    """Whether it is asked if that one is to be cancelled."""
    told: str = ""
    """What came of the last thing that was done."""

    def moved(self, rows: Sequence[Row], by: int) -> Choice:
        """The next request is selected, or the one before."""
        ids = [str(row.get("id")) for row in rows]
        if not ids:
            return replace(self, selected="")
        place = ids.index(self.selected) + by if self.selected in ids else 0
        return replace(self, selected=ids[max(0, min(place, len(ids) - 1))], told="")


def ordered(now: Snapshot | None, choice: Choice) -> list[Row]:
    return sorted((now.requests if now else None) or (), key=SORTS[choice.sort].key)


@dataclass(frozen=True)
class TopView:
    """The whole screen; drawn for whatever size the terminal has at that moment."""

    before: Snapshot | None
    now: Snapshot | None
    choice: Choice
    trouble: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        used = 0
        for part, lines in self._parts(height):
            used += lines
            yield part
        yield from [Text("")] * max(0, height - used - 1)
        yield _line(self._footer(), "bold" if self.choice.confirming else "dim")

    def _parts(self, height: int) -> Iterable[tuple[RenderableType, int]]:
        """From top to bottom, each with the lines that it takes; one line is left for the keys."""
        left = height - 1
        head = [*([_line(self.trouble, "yellow")] if self.trouble else []), *self._header()]
        for line in head[: max(0, left)]:
            yield line, 1
        left -= len(head)
        if self.now is None:
            return
        ranks = list(self.now.ranks)
        # Ranks take a half of what is left at most, requests the rest.
        shown = ranks[: max(0, min(len(ranks), left // 2 - 2))]
        if shown:
            yield Text(""), 1
            yield self._ranks(shown), len(shown) + 1
            left -= len(shown) + 2
        if left >= 3:
            yield Text(""), 1
            yield from self._requests(left - 1)

    def _header(self) -> list[RenderableType]:
        now = self.now
        if now is None:
            return []
        running = sum(row.get("running") or 0 for row in now.models)
        waiting = sum(row.get("waiting") or 0 for row in now.models)
        fast, hits = speed(self.before, now), now.cache.get("hit_rate")
        figures = [
            f"{fast:.1f} tok/s" if fast is not None else "- tok/s",
            f"{running} running",
            f"{waiting} waiting",
            f"cache hits {hits:.0%}" if hits is not None else "cache hits -",
        ]
        lines = [Text.assemble((_model_line(row), "bold"), f"  {now.url}") for row in now.models[:1]]
        lines += [Text(_model_line(row)) for row in now.models[1:MOST_MODEL_LINES]]
        if (more := len(now.models) - MOST_MODEL_LINES) > 0:
            lines.append(Text(f"and {more} more models"))
        return [*map(_fitted, lines), _line("  ".join(figures), "cyan")]

    def _ranks(self, ranks: list[Row]) -> Table:
        several = len({rank.get("model") for rank in ranks}) > 1
        table = _table("rank", "node", "layers", ">memory", ">step", "state", "time goes to")
        for rank in ranks:
            spent = phases(self.before, self.now, rank) if self.now else {}
            most = sorted(spent.items(), key=lambda entry: -entry[1])[:3]
            name = f"{_short(rank.get('model'))} {rank.get('rank')}" if several else str(rank.get("rank"))
            table.add_row(
                *_cells(
                    name,
                    rank.get("node") or "-",
                    rank.get("layers") or "-",
                    size(rank.get("memory_bytes") or 0),
                    rank.get("step", "-"),
                    rank.get("state") or "-",
                    ", ".join(f"{phase} {share:.0%}" for phase, share in most) or "-",
                )
            )
        return table

    def _requests(self, lines: int) -> Iterable[tuple[RenderableType, int]]:
        assert self.now is not None
        if self.now.requests is None:
            yield _line("this server does not list its requests", "dim"), 1
            return
        rows = ordered(self.now, self.choice)
        if not rows:
            yield _line("no request is running", "dim"), 1
            return
        room = max(1, lines - 1)
        chosen = next((place for place, row in enumerate(rows) if row.get("id") == self.choice.selected), 0)
        first = max(0, min(chosen - room + 1, len(rows) - room)) if chosen >= room else 0
        shown = rows[first : first + room]
        table = _table("request", "model", "key", "state", ">age", ">prompt", ">tokens", ">tok/s")
        for row in shown:
            rate = row.get("tokens_per_second")
            style = "reverse" if row.get("id") == self.choice.selected else ""
            table.add_row(
                *_cells(
                    short_id(row.get("id")),
                    _short(row.get("model")),
                    row.get("key") or "-",
                    row.get("state"),
                    _age(row.get("age_seconds") or 0),
                    row.get("prompt_tokens") if row.get("prompt_tokens") is not None else "-",
                    row.get("generated_tokens", "-"),
                    f"{rate:.1f}" if rate is not None else "-",
                ),
                style=style,
            )
        yield table, len(shown) + 1

    def _footer(self) -> str:
        if self.choice.confirming:
            return f"cancel {_flat(short_id(self.choice.selected))}? y: yes, any other key: no"
        keys = f"q quit  ↑↓ select  c cancel  s sort: {SORTS[self.choice.sort].name}"
        return f"{keys}   {_flat(self.choice.told)}" if self.choice.told else keys


def plain_lines(before: Snapshot | None, now: Snapshot) -> list[str]:
    """The same for whoever has no terminal: a line for each thing, none of them cut."""
    fast = speed(before, now)
    lines = [f"model {_model_line(row)}" for row in now.models]
    lines += [f"tokens_per_second {fast:.1f}"] if fast is not None else []
    if (hits := now.cache.get("hit_rate")) is not None:
        lines.append(f"cache_hit_rate {hits:.4f}")
    for rank in now.ranks:
        held = size(rank.get("memory_bytes") or 0)
        lines.append(
            f"rank {rank.get('rank')} of {rank.get('model')} on {rank.get('node') or '-'}: {rank.get('state') or '-'}, "
            f"layers {rank.get('layers') or '-'}, {held}, step {rank.get('step', '-')}"
        )
    for row in now.requests or ():
        rate = row.get("tokens_per_second")
        speed_told = f", {rate:.1f} tok/s" if rate is not None else ""
        lines.append(
            f"request {row.get('id')} of {row.get('model')}: {row.get('state')}, {_age(row.get('age_seconds') or 0)}, "
            f"{row.get('prompt_tokens')} prompt tokens, {row.get('generated_tokens')} tokens{speed_told}"
        )
    return [_flat(line) for line in lines]


def _model_line(row: Row) -> str:
    state = str(row.get("state") or "-")
    share = f" {row.get('progress') or 0:.0%}" if state == "loading" else ""
    waiting = f", {row['waiting']} waiting" if row.get("waiting") else ""
    return _flat(f"{row.get('id') or '-'}  {state}{share}  {row.get('running') or 0} running{waiting}")


def _short(name: object) -> str:
    return str(name or "-").rpartition("/")[2]


def _age(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _table(*names: str) -> Table:
    """Columns whose names begin with > stand to the right. What does not fit is cut, so that a row is a line."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=False, header_style="bold underline")
    for name in names:
        table.add_column(
            name.removeprefix(">"),
            justify="right" if name.startswith(">") else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    return table


def _cells(*values: object) -> tuple[Text, ...]:
    return tuple(Text(_flat(str(value))) for value in values)


def _flat(text: str) -> str:
    """Names and words of others, in one line."""
    return harmless(text).replace("\n", " ").replace("\t", " ")


def _line(text: str, style: str = "") -> Text:
    return _fitted(Text(_flat(text), style))


def _fitted(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
