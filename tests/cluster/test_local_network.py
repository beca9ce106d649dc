from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from chorus.cluster.agent.process import Agent, AgentOptions
from chorus.security import enrol
from chorus.security.token import Token
from tests.support.fake_mac import played


def test_an_agent_that_a_mac_keeps_off_the_network_names_the_permission(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    played(monkeypatch, tmp_path / "mac")
    peer = ("10.0.0.2", 50150)
    agent = Agent(AgentOptions("mini", tmp_path, tmp_path, token=Token.new(), peers=(peer,)))

    def dial(*_: object) -> None:
        agent._halt.set()
        raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))

    monkeypatch.setattr(enrol, "dial_as_candidate", dial)
    agent._keep_peer(peer)
    assert "cannot reach 10.0.0.2:50150" in caplog.text
    assert "System Settings > Privacy & Security > Local Network" in caplog.text
