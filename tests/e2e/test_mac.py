"""The real commands on a Mac that is played: all of them up to the calls of its tools, on whatever system tests run."""

from __future__ import annotations

import getpass
import json
import os
import plistlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.test_supervision import eventually
from tests.support.door import usual_door
from tests.support.fake_mac import FakeMac
from tests.support.ports import listening_port
from tests.support.server import ChorusServer, running


@pytest.fixture
def mac(tmp_path: Path) -> FakeMac:
    return FakeMac(tmp_path / "mac")


@pytest.fixture
def door() -> Iterator[None]:
    with usual_door():
        yield


def chorus(mac: FakeMac, *arguments: str) -> str:
    """What a command prints, errors too; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "chorus.cli", *arguments],
        env=mac.environment(),
        cwd=mac.home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_serve_answers_stays_awake_and_leaves_nothing_running(mac: FakeMac, tmp_path: Path, tiny_model: Path) -> None:
    with ChorusServer(tiny_model, [], tmp_path, mac.environment()) as server:
        assert server.complete([5, 6, 7], max_tokens=4)["usage"]["completion_tokens"] == 4
        assert eventually(lambda: f"caffeinate -ims -w {server.process.pid}" in mac.calls()), mac.calls()
        # No kernel kills what outlives its parent there, so every child has somebody who does.
        children = [server.process_named("chorus.api"), server.process_named("chorus.engine")]
        for child in children:
            assert eventually(lambda child=child: bool(running(child.children(), "killer.py")))  # type: ignore[misc]


def test_doctor_reports_a_mac(mac: FakeMac) -> None:
    found = chorus(mac, "doctor")
    assert re.search(r"system +ok +macOS 26\.2 arm64", found)
    assert re.search(r"chip +ok +Apple M4 Pro", found)
    assert re.search(r"mlx wheel +ok +Metal", found)
    assert re.search(r"backend +ok +metal", found)
    assert re.search(r"RDMA +ok +enabled, with rdma_en2, rdma_en3", found)


def test_join_installs_an_agent_then_a_daemon_in_its_place_and_removes_it(mac: FakeMac) -> None:
    chorus(mac, "token", "new")
    said = chorus(mac, "join", "--install", "--name", "mini", "--peer", "10.0.0.1")
    agent = mac.home / "Library/LaunchAgents/dev.chorus.agent.plist"
    assert agent.exists(), said
    job = plistlib.loads(agent.read_bytes())
    logs = str(mac.home / "Library/Logs/Chorus")
    assert job["ProgramArguments"][1:6] == ["-m", "chorus.cli", "join", "--name", "mini"]
    assert job["ProgramArguments"][-4:] == ["--log-dir", logs, "--peer", "10.0.0.1"]
    assert "UserName" not in job
    assert (job["StandardOutPath"], job["StandardErrorPath"]) == ("/dev/null", f"{logs}/agent.log")
    assert job["SoftResourceLimits"] == {"NumberOfFiles": 10240}
    domain = f"gui/{os.getuid()}"
    assert f"launchctl bootstrap {domain} {agent}" in mac.calls()
    assert "System Settings > Privacy & Security > Local Network" in said

    said = chorus(mac, "join", "--install", "--daemon", "--name", "mini")
    daemon = mac.daemons / "dev.chorus.agent.plist"
    assert plistlib.loads(daemon.read_bytes())["UserName"] == getpass.getuser()
    assert f"sudo launchctl bootstrap system {daemon}" in mac.calls()
    assert f"stopped {domain}/dev.chorus.agent" in said
    assert "Local Network" not in said
    assert not agent.exists()

    said = chorus(mac, "join", "--uninstall")
    assert "stopped system/dev.chorus.agent" in said
    assert "sudo launchctl bootout system/dev.chorus.agent" in mac.calls()
    assert not daemon.exists()
    assert mac.loaded() == []


@pytest.mark.usefixtures("door")
def test_up_starts_a_cluster_that_answers_and_down_ends_it(mac: FakeMac, tmp_path: Path, tiny_model: Path) -> None:
    config = tmp_path / "one.json"
    devices = [
        {
            "device_id": "mini",
            "hostname": "localhost",
            "port": listening_port(),
            "python": str(mac.tools / "python3"),
        }
    ]
    settings = {"model": str(tiny_model), "api": {"port": listening_port()}, "devices": devices}
    config.write_text(json.dumps(settings))
    try:
        ready = json.loads(chorus(mac, "up", "-c", str(config), "--json").splitlines()[-1])["ready"]
        url = re.search(r"http://\S+", ready)
        assert url
        body = {"prompt": [5, 6, 7], "max_tokens": 2, "temperature": 0}
        answer = httpx.post(f"{url[0]}/completions", json=body, timeout=120)
        assert answer.json()["usage"]["completion_tokens"] == 2
        assert eventually(lambda: bool(mac.calls("caffeinate")))
    finally:
        assert "ended coordinator" in chorus(mac, "down", "-c", str(config), "--purge")
