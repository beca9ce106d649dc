"""Whoever comes from an older project types what docs/coming-from.md says, and it does what the row means."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from chorus.config.settings import Settings
from tests.readers.conftest import Typed
from tests.readers.happens import HAPPENS, Outcome, OverSsh, Says, Served, Starts
from tests.readers.tables import Row, rows

ROWS = [row for row in rows() if any(isinstance(outcome, Starts | Says) for outcome in HAPPENS[row.project, row.typed])]


def test_every_row_of_the_page_has_a_command_and_something_that_happens() -> None:
    on_page = {(row.project, row.typed): len(row.now) for row in rows()}
    assert on_page == {row: len(outcomes) for row, outcomes in HAPPENS.items()}
    assert all(on_page.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.project}: {row.typed}")
def test_what_is_typed_now_does_what_the_row_means(
    row: Row, type_line: Callable[[str, Path], Typed], folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of(row.project)
    for line, outcome in zip(row.now, HAPPENS[row.project, row.typed], strict=True):
        check(line, type_line(line, folder), outcome)


def check(line: str, typed: Typed, outcome: Outcome) -> None:
    match outcome:
        case Says(text):
            assert not typed.started, line
            assert text in typed.said, typed.said
        case Starts(settings):
            assert typed.started, f"{line}: {typed.said}"
            if settings:
                assert typed.settings is not None
                assert {key: value_of(typed.settings, key) for key in settings} == settings
        case Served() | OverSsh():
            pytest.fail("it is typed where a cluster runs")


def value_of(settings: Settings, key: str) -> Any:
    return [device.device_id for device in settings.devices] if key == "devices" else attrgetter(key)(settings)
