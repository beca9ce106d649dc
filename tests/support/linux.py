"""Tests of what only Linux has, marked `linux("what that is")`: elsewhere they are skipped, and counted at the end."""

from __future__ import annotations

import pytest

from chorus.platform import system

ONLY_LINUX = "only Linux has this: "


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if system.is_linux():
        return
    for item in items:
        if mark := item.get_closest_marker("linux"):
            item.add_marker(pytest.mark.skip(reason=ONLY_LINUX + mark.args[0]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("skipped")
    count = sum(isinstance(report.longrepr, tuple) and ONLY_LINUX in report.longrepr[2] for report in reports)
    if count:
        terminalreporter.write_line(f"{count} skipped: they test what only Linux has")
