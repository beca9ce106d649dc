"""How long each test file takes: kept in `tests/times.json`, so that a run begins with the longest.

A run over several workers is as long as its last file, and files with few long tests would come last otherwise.
`make test-times` measures again. The file also holds the budget for all of them together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "times.json"


@dataclass(frozen=True)
class Times:
    budget_seconds: float
    """For a run of all tests by so many workers."""
    workers: int
    files: Mapping[str, float]
    """Seconds of one worker, by the path of the file in the repository."""

    @property
    def run_seconds(self) -> float:
        """Of a run whose workers are all busy to its end."""
        return sum(self.files.values()) / self.workers

    def longest_first(self, file: str) -> float:
        """What to sort files by; one that was never measured may be long."""
        return -self.files.get(file, float("inf"))

    def measured(self, seconds: Mapping[str, float], all_files: bool) -> Times:
        """With these files measured anew; the others are as they were, or gone where all were run."""
        known = {} if all_files else self.files
        rounded = {file: round(taken, 1) for file, taken in seconds.items()}
        return replace(self, files=dict(sorted({**known, **rounded}.items())))


def load() -> Times:
    return Times(**json.loads(FILE.read_text()))


def save(times: Times) -> None:
    FILE.write_text(json.dumps(vars(times), indent=1) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-times", action="store_true", help=f"write to {FILE.name} what each file run takes")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    times = load()
    items.sort(key=lambda item: times.longest_first(_file(item.nodeid)))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--write-times") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Clock(config), "times")


class _Clock:
    """Adds up what is reported, by this process or by its workers, and writes it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = _file(report.nodeid)
        self._seconds[file] = self._seconds.get(file, 0.0) + report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        times = load().measured(self._seconds, self._config.args_source is not pytest.Config.ArgsSource.ARGS)
        save(times)
        terminalreporter.write_line(
            f"{FILE.name}: {times.run_seconds:.0f} s over {times.workers} workers, of {times.budget_seconds:.0f} s"
        )


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
