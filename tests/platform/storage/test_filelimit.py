from __future__ import annotations

import resource
from pathlib import Path

import pytest

from chorus.platform.storage.filelimit import raise_file_limit
from tests.support.fake_mac import played

UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """This process's limits of open files, from those that a Mac begins with to the last one set."""
    held = [(256, UNLIMITED)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: held[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, asked: held.append(asked))
    return held


@pytest.mark.parametrize(("kernel", "expected"), [("10240\n", 10240), ("184320\n", 20000), ("", 10240)])
def test_a_mac_is_asked_for_no_more_than_its_kernel_gives(
    limits: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: str, expected: int
) -> None:
    played(monkeypatch, tmp_path / "mac", {"sysctl -n kern.maxfilesperproc": kernel})
    assert raise_file_limit(20000) == expected
    assert limits[-1] == (expected, UNLIMITED)


def test_an_agent_raises_its_limit_when_it_starts(limits: list[tuple[int, int]], tmp_path: Path) -> None:
    from chorus.cluster.agent.process import AgentCannotRun, AgentOptions, run_agent

    with pytest.raises(AgentCannotRun):
        run_agent(AgentOptions(name="mini", state=tmp_path / "state", logs=tmp_path))
    assert limits[-1][0] > 1024
