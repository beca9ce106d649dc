from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from chorus.deploy.supervisor import ProcessGroup, Program
from chorus.platform.process.lifeline import Lifeline
from tests.cluster.harness import eventually
from tests.support.fake_mac import played


def words_of(process: psutil.Process) -> str:
    """Its command line; none of one that has ended, which whoever started it may not have reaped so far."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_whoever_keeps_processes_of_a_model_keeps_a_mac_awake_until_they_are_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """serve, a leader, a worker and the LocalAI backend all run such a group."""
    mac = played(monkeypatch, tmp_path / "mac")

    async def run() -> None:
        lifeline = Lifeline()
        sleeper = Program("rank", [sys.executable, "-c", "import time; time.sleep(600)"])
        group = ProcessGroup("ranks", [sleeper], lifeline, grace_seconds=5)
        await group.start()
        try:
            assert eventually(lambda: mac.calls("caffeinate") == [f"caffeinate -ims -w {os.getpid()}"])
        finally:
            await group.stop()
            lifeline.cut()
        assert [child for child in psutil.Process().children() if "caffeinate" in words_of(child)] == []

    asyncio.run(run())
