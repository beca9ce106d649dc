"""What went wrong last night: the journal tells the story of a killed rank after everything was started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from chorus.telemetry import journal
from tests.support.ports import listening_port
from tests.support.server import ChorusServer

ENDLESS = {"prompt": "The quick brown fox", "max_tokens": 2000, "logit_bias": {"2": -100}, "stream": True}


def told(state: Path, *options: str) -> str:
    """What `chorus events` prints, by itself."""
    command = [sys.executable, "-c", "from chorus.cli import main; main()", "events", *options]
    environment = {**os.environ, "CHORUS_STATE": str(state), "COLUMNS": "300"}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout


def events(state: Path, *options: str) -> list[dict[str, Any]]:
    return list(json.loads(told(state, "--json", *options)))


def wait_for(state: Path, kind: str) -> None:
    deadline = time.monotonic() + 120
    while not journal.read(journal.folder_in(state), wanted=lambda event: event.kind == kind):
        assert time.monotonic() < deadline, told(state)
        time.sleep(0.05)


def streamed(url: str, begun: threading.Event, ended: list[str]) -> None:
    with httpx.stream("POST", f"{url}/v1/completions", json=ENDLESS, timeout=300) as answer:
        for line in answer.iter_lines():
            ended.append(line)
            if line.startswith("data: {"):
                begun.set()


def test_a_killed_rank_a_killed_leader_and_a_killed_server_are_told_after_all_was_restarted(
    tiny_model: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    arguments = ["--ranks", "2", "--transport", "grpc", "--port", str(listening_port())]
    with ChorusServer(tiny_model, arguments, tmp_path, {"CHORUS_STATE": str(state)}) as server:
        begun, lines = threading.Event(), list[str]()
        client = threading.Thread(target=streamed, args=(server.url, begun, lines))
        client.start()
        assert begun.wait(120)
        server.process_named("chorus.rank").send_signal(signal.SIGKILL)
        wait_for(state, "recovered")
        server.process_named("chorus.engine").send_signal(signal.SIGKILL)
        wait_for(state, "serves_again")
        client.join(300)
        assert lines[-2] == "data: [DONE]"
        server.process_named("chorus.api").send_signal(signal.SIGKILL)
        wait_for(state, "front_end_lost")
        front_end = httpx.get(f"{server.url}/events?limit=1000", timeout=120).json()["events"]
        assert front_end == events(state)
        children = server.processes()
        server.process.kill()
        server.wait_for_exit()
        # The last of them lets go of the port, which the next server takes.
        assert not psutil.wait_procs(children, timeout=120)[1]
    with ChorusServer(tiny_model, arguments, tmp_path, {"CHORUS_STATE": str(state)}):
        pass
    story = events(state)
    kinds = [event["kind"] for event in story]
    assert kinds[:5] == ["server_started", "model_loading", "model_ready", "rank_lost", "recovered"]
    assert kinds[5] == "rank_lost"
    assert set(kinds[6:8]) == {"serves_again", "requests_resumed"}
    ending = ["server_started", "model_loading", "model_ready", "model_unloaded", "server_stopped"]
    assert kinds[8:] == ["front_end_lost", "server_vanished", *ending]
    rank, recovered, leader = story[3], story[4], story[5]
    assert (rank["rank"], rank["cause"]) == (1, "outside")
    assert "rank 1 ended with SIGKILL; starting it again" in rank["text"]
    assert recovered["numbers"]["streams"] == 1
    assert recovered["numbers"]["seconds"] > 0
    assert recovered["numbers"]["tokens"] > 0
    assert "(rank 1 ended with SIGKILL); streams carried: 1" in recovered["text"]
    assert leader["rank"] == 0
    resumed = next(event for event in story if event["kind"] == "requests_resumed")
    assert resumed["numbers"]["streams"] == 1
    assert "WARNING  rank_lost         tiny: rank 1 ended with SIGKILL" in told(state, "--since", "1h")
