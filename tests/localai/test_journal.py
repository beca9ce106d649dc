"""What happens to LocalAI's backend is in the journal, as what happens to `chorus serve` is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from chorus.telemetry import journal
from chorus.telemetry.events import Event
from tests.localai.process import Backend
from tests.support.server import running

TOKENS = 1000
"""Many more than are said before a process is found and killed."""


def test_loads_losses_and_recoveries_are_told_and_how_it_ended(tmp_path: Path, tiny_model: Path) -> None:
    folder = journal.folder_in(tmp_path / "state")

    def story() -> list[Event]:
        return journal.read(folder, limit=100)

    def eventually(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not holds():
            assert time.monotonic() < deadline, [event.text for event in story()]
            time.sleep(0.05)

    def kill(module: str, until: str) -> None:
        stream = backend.client.PredictStream(Prompt="The quick brown fox", Tokens=TOKENS, IgnoreEOS=True, timeout=300)
        next(stream)
        running(backend.children(), module)[0].kill()
        assert sum(reply.tokens > 0 for reply in stream), "it goes on"
        eventually(lambda: until in {event.kind for event in story()})

    with Backend(tmp_path) as backend:
        backend.load(tiny_model, "ranks:2", "transport:grpc")
        kill("chorus.rank", "recovered")
        kill("chorus.engine", "serves_again")
        assert not backend.client.LoadModel(Model=str(tmp_path / "nowhere")).success
    told = story()
    kinds = [event.kind for event in told]
    assert kinds[:5] == ["server_started", "model_loading", "model_ready", "rank_lost", "recovered"]
    assert kinds[5] == "rank_lost"
    assert set(kinds[6:8]) == {"serves_again", "requests_resumed"}
    assert kinds[8:] == ["model_unloaded", "model_failed", "server_stopped"]
    assert {event.server for event in told} == {backend.address}
    assert {event.model for event in told[1:9]} == {tiny_model.name}
    assert [told[place].rank for place in (3, 5)] == [1, 0]
    assert [told[place].cause for place in (3, 5)] == ["outside", "outside"]
    assert "rank 1 ended with SIGKILL; starting it again" in told[3].text
    assert "nowhere" in told[9].text
