"""A few of the requests that `make fuzz` sends by the thousand, to a server with all its processes."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tests.fuzz.__main__ import Options, fuzz
from tests.fuzz.server.attempts import Attempt, load, request, save
from tests.fuzz.server.sending import Answer, problem
from tests.fuzz.server.watching import Identity, excess


def test_hostile_requests_harm_nobody(tmp_path: Path) -> None:
    # How soon others are served is a measurement, for machines that run nothing else.
    options = Options(requests=120, seed=1, ranks=1, keys=False, probe_seconds=60.0)
    console = Console(record=True)
    result = fuzz(options, tmp_path, console)
    missed = [verdict.goal.words for verdict in result.verdicts if not verdict.met]
    assert not missed, f"{missed}: {result.notes}\n{console.export_text()}"


def test_a_request_that_was_saved_is_the_same_again(tmp_path: Path) -> None:
    sent = Attempt("wire", (bytes(range(256)), b"\xff\r\n"), pause=0.5, owed=False, leave_after=3)
    save(sent, tmp_path / "sent.json")
    assert load(tmp_path / "sent.json") == sent


def answered(status: str, more: bytes = b"") -> Answer:
    return Answer("whole", f"HTTP/1.1 {status} X\r\n".encode() + more, 0.1)


def test_a_failure_of_the_server_is_told_from_a_refusal() -> None:
    asked = Attempt("right", (request("GET", "/health"),))
    assert problem(asked, answered("200")) is None
    assert problem(asked, answered("400")) is None
    assert problem(asked, answered("503", b"Retry-After: 2\r\n")) is None
    assert problem(asked, answered("503")) == "status 503"
    assert problem(asked, answered("500")) == "status 500"
    assert (
        problem(asked, answered("200", b'content-type: text/event-stream\r\n\r\n{"type": "server_error"}')) is not None
    )
    assert problem(asked, Answer("whole", b"", 0.1)) == "closed without an answer"
    assert problem(asked, Answer("impatient", b"", 60.0)) == "no answer in time"
    assert problem(asked, Answer("refused", b"", 0.1)) == "no connection"


def test_growth_is_told_from_breathing() -> None:
    api = Identity(1, 0.0, "-m chorus.api")
    assert excess({api: 100_000_000}, {api: 124_000_000})[api] < 0 < excess({api: 100_000_000}, {api: 126_000_000})[api]
