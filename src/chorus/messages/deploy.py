"""The link between the owner of all groups and its front ends: which models there are one way, who is asked for the
other."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from chorus.messages.proto import control_pb2 as pb


class ModelState(enum.Enum):
    """Called as on the wire."""

    UNLOADED = pb.UNLOADED
    WAITING = pb.WAITING
    """Wanted; there is no room yet."""
    LOADING = pb.LOADING
    READY = pb.READY
    DRAINING = pb.DRAINING
    """It takes nothing new, and ends with its last request."""
    FAILED = pb.FAILED

    @property
    def takes_requests(self) -> bool:
        return self is ModelState.READY


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model as its owner sees it. Its fields are called as on the wire."""

    id: str
    state: ModelState
    settings: str
    """`config.front_end.ModelSettings` as JSON: names, files, the engine's address."""
    detail: str = ""
    """What is being done, or why it failed, for people."""
    progress: float = 0.0
    loaded_bytes: int = 0
    total_bytes: int = 0
    booked_bytes: int = 0
    ranks: int = 0
    nodes: tuple[str, ...] = ()
    pinned: bool = False
    until: float = 0.0
    """When it goes unless it is asked for, in seconds since 1970; 0: it stays."""
    loaded_at: float = 0.0
    loads: int = 0


@dataclass(frozen=True, slots=True)
class PullRow:
    """A model that is fetched into the store, or was lately. Its fields are called as on the wire."""

    name: str
    detail: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    """0: not known."""
    ended: bool = False
    failure: str = ""
    started_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Table:
    version: int
    models: tuple[ModelRow, ...]
    """The first is what a request without a name means."""
    pulls: tuple[PullRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """What one front end is asked for of one model. Its fields are called as on the wire."""

    id: str
    waiting: int = 0
    oldest_seconds: float = 0.0
    """How long the first of those that wait has."""
    running: int = 0
    served: int = 0
    """Requests that have ended, since the front end began."""
    keep_alive_seconds: float | None = None
    """As the last request asked for; below 0: it stays."""


@dataclass(frozen=True, slots=True)
class Report:
    seen: int
    """The version of the table by which the front end routes now."""
    demands: tuple[Demand, ...]


_NEAR_ENOUGH = 0.4


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The model's name that somebody who typed this one may have meant."""
    by_lower = {each.lower(): each for each in names}
    found = difflib.get_close_matches(name[:256].lower(), list(by_lower), 1, _NEAR_ENOUGH)
    return by_lower[found[0]] if found else None


_ROW_NUMBERS = (
    "progress",
    "loaded_bytes",
    "total_bytes",
    "booked_bytes",
    "ranks",
    "pinned",
    "until",
    "loaded_at",
    "loads",
)


def table_to_wire(table: Table) -> pb.Table:
    pulls = [pb.PullRow(**asdict(pull)) for pull in table.pulls]
    return pb.Table(version=table.version, models=map(_row_to_wire, table.models), pulls=pulls)


def _row_to_wire(row: ModelRow) -> pb.Model:
    return pb.Model(
        id=row.id,
        state=row.state.value,
        settings=row.settings,
        detail=row.detail,
        nodes=row.nodes,
        **{name: getattr(row, name) for name in _ROW_NUMBERS},
    )


def table_from_wire(message: pb.Table) -> Table:
    pulls = (PullRow(*(getattr(pull, name.name) for name in fields(PullRow))) for pull in message.pulls)
    return Table(message.version, tuple(map(_row_from_wire, message.models)), tuple(pulls))


def _row_from_wire(message: pb.Model) -> ModelRow:
    return ModelRow(
        message.id,
        ModelState(message.state),
        message.settings,
        message.detail,
        nodes=tuple(message.nodes),
        **{name: getattr(message, name) for name in _ROW_NUMBERS},
    )


def report_to_wire(seen: int, demands: Iterable[Demand]) -> pb.Report:
    return pb.Report(
        seen=seen,
        demands=[
            pb.Demand(
                id=each.id,
                waiting=each.waiting,
                oldest_seconds=each.oldest_seconds,
                running=each.running,
                served=each.served,
                keep_alive_seconds=each.keep_alive_seconds,
            )
            for each in demands
        ],
    )


def report_from_wire(message: pb.Report) -> Report:
    return Report(
        message.seen,
        tuple(
            Demand(
                each.id,
                each.waiting,
                each.oldest_seconds,
                each.running,
                each.served,
                each.keep_alive_seconds if each.HasField("keep_alive_seconds") else None,
            )
            for each in message.demands
        ),
    )
