"""`chorus bench` typed as people type it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from chorus.cli.bench import is_address
from chorus.platform.process import killer
from tests.cli.conftest import Answers, Scripted
from tests.cli.typed import one_line, typed
from tests.support.tiny_model import write_tiny_model

DEADLINE = 240
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
QUICK = "--streams 1,2 --prompt-tokens 16 --tokens 2 --rounds 1"


def events(*data: dict[str, Any]) -> str:
    return "".join(f"data: {json.dumps(each)}\n\n" for each in data) + "data: [DONE]\n\n"


def piece(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "text": text}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 2}}
GOOD: Answers = {
    "/v1/models": (200, {"data": [{"id": "tiny"}]}),
    CHAT: (200, events(piece("a"), piece("b"), USAGE)),
    TEXT: (200, events(piece("a"), piece("b"), USAGE)),
}


@pytest.fixture(autouse=True)
def at_home(folder: Path) -> Path:
    return folder


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_an_endpoint_is_measured_by_any_form_of_its_address(scripted: Callable[..., Scripted], ending: str) -> None:
    shown = typed(f"bench {scripted(GOOD).url}{ending} {QUICK}")
    assert shown.exit_code == 0, shown.output
    heading, *_, one, two = shown.stdout.splitlines()
    assert heading.startswith("tiny at http://127.0.0.1:")
    assert (one.split()[:4], two.split()[:4]) == (["1", "20", "-", "2"], ["2", "20", "-", "2"])


def test_json_on_standard_output_is_nothing_but_json(scripted: Callable[..., Scripted]) -> None:
    shown = typed(f"bench {scripted(GOOD).url} {QUICK} --completions --model mine --json -")
    found = json.loads(shown.stdout)
    assert (found["version"], found["model"], found["api"], found["complete"]) == (1, "mine", "completions", True)
    assert [(case["together"], len(case["rounds"][0]["answers"])) for case in found["cases"]] == [(1, 1), (2, 2)]
    assert "decode" in shown.stderr


def test_agents_send_their_history_and_are_measured_in_place_of_streams(
    folder: Path, scripted: Callable[..., Scripted]
) -> None:
    shown = typed(f"bench {scripted(GOOD).url} --agents 2 --turns 3 --rounds 1 --prompt-tokens 16 --json found.json")
    assert shown.exit_code == 0, shown.output
    (case,) = json.loads((folder / "found.json").read_text())["cases"]
    assert (case["kind"], case["turns"], len(case["rounds"][0]["answers"])) == ("agents", 3, 6)


def test_a_stream_without_usage_is_measured_and_told(scripted: Callable[..., Scripted]) -> None:
    shown = typed(f"bench {scripted({**GOOD, CHAT: (200, events(piece('a')))}).url} {QUICK}")
    assert shown.exit_code == 0, shown.output
    assert "it tells no usage: each piece of text counts as a token" in shown.stderr


@pytest.mark.parametrize(
    ("answers", "key", "said"),
    [
        ({}, None, "is no OpenAI endpoint, it has no /v1/models"),
        ({"/v1/models": (200, "<html>")}, None, "is no OpenAI endpoint"),
        (GOOD, "secret", "asks for a key: give it with --api-key or OPENAI_API_KEY"),
        ({**GOOD, CHAT: (200, "data: {}\n\n")}, None, "ended a stream early"),
        ({**GOOD, CHAT: (400, {"error": {"message": "too long"}})}, None, "answered 400: too long"),
    ],
    ids=["nothing there", "html", "no key", "a stream that stops", "refused"],
)
def test_an_endpoint_that_does_not_answer_is_one_line(
    scripted: Callable[..., Scripted], answers: Answers, key: str | None, said: str
) -> None:
    assert said in one_line(typed(f"bench {scripted(answers, key).url} {QUICK}"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("http://127.0.0.1:9", "nothing answers at http://127.0.0.1:9: start it"),
        ("http://", "http://: expected http://HOST:PORT"),
        ("http://127.0.0.1:9 -- --ranks 2", "options for chorus serve go with a MODEL"),
        ("http://x --streams 1,x", "--streams 1,x: expected numbers from 1 to 1024 separated by commas"),
        ("http://x --streams 0", "--streams 0: expected numbers"),
        ("http://x --prompt-tokens 99999999999", "--prompt-tokens 99999999999: expected numbers"),
        ("http://x --json nowhere/found.json", "--json nowhere/found.json: cannot be written"),
        ("http://x --plot found.pdf", "the picture is a PNG, call it found.png"),
        ("http://x --agents 2 --completions", "leave one of them out"),
        ("./no-such-model", "chorus serve did not start: "),
    ],
)
def test_what_cannot_be_measured_is_one_line_that_says_what_to_do(line: str, said: str) -> None:
    assert said in one_line(typed(f"bench {line}"))


def test_what_was_measured_before_an_error_is_shown(scripted: Callable[..., Scripted]) -> None:
    server = scripted(GOOD)
    # Which model, two lengths, a warm-up and a round: what is asked next fails.
    server.fail_after = 5
    shown = typed(f"bench {server.url} {QUICK} --json -")
    assert shown.exit_code == 1
    found = json.loads(shown.stdout)
    assert ([case["together"] for case in found["cases"]], found["complete"]) == ([1], False)
    assert "answered 500: enough" in shown.stderr


def test_whoever_stops_it_sees_what_was_measured_so_far(scripted: Callable[..., Scripted]) -> None:
    server = scripted(GOOD)
    asked = server.asked = threading.Semaphore(0)
    # Whoever runs tests in the background may have made them deaf to Ctrl-C, and their children with them.
    hearing = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from chorus.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", hearing, "bench", server.url, *QUICK.split(), "--rounds", "1000", "--json", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(20):
        assert asked.acquire(timeout=DEADLINE)
    process.send_signal(signal.SIGINT)
    shown, told = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, told
    assert not json.loads(shown)["complete"]
    assert "stopped before the end of 1000 rounds" in told


def test_a_model_is_served_for_as_long_as_it_is_measured(folder: Path) -> None:
    model = write_tiny_model(folder / "model", tokenizer=True)
    line = f"bench {model} {QUICK} --shared-prefix 64 --model other --json found.json -- --alias other"
    shown = subprocess.run(
        [sys.executable, "-m", "chorus.cli", *line.split()],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env={**os.environ, "BENCH_TEST": str(folder)},
    )
    assert shown.returncode == 0, shown.stderr
    one, two = json.loads((folder / "found.json").read_text())["cases"]
    assert one["figures"]["prompt_tokens"] > 64
    assert two["figures"]["cached_tokens"] > 32
    assert two["figures"]["completion_tokens"] == 2
    assert [each for each in started_by(folder) if not _ends_by_itself(each)] == []
    wait_until_none_is_left(folder)


def test_its_server_ends_with_it_however_it_ends(folder: Path) -> None:
    model = write_tiny_model(folder / "model", tokenizer=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "chorus.cli", "bench", str(model)], env={**os.environ, "BENCH_TEST": str(folder)}
    )
    deadline = time.monotonic() + DEADLINE
    while len(started := started_by(folder)) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait(DEADLINE)
    assert psutil.wait_procs(started, timeout=DEADLINE)[1] == []
    wait_until_none_is_left(folder)


def wait_until_none_is_left(folder: Path) -> None:
    """What the server itself has started is ended by its end, and after it."""
    deadline = time.monotonic() + DEADLINE
    while left := started_by(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def started_by(folder: Path) -> list[psutil.Process]:
    """The command that a test in this folder runs, and all that this one started."""
    return [process for process in psutil.process_iter() if _environment(process).get("BENCH_TEST") == str(folder)]


def _ends_by_itself(process: psutil.Process) -> bool:
    """Where the kernel kills nobody for us, a process does for each of ours, and ends a moment after it."""
    try:
        return str(killer.__file__) in process.cmdline()
    except (psutil.Error, OSError):
        return True


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def test_addresses_are_told_from_models(folder: Path) -> None:
    (folder / "a:1").mkdir()
    assert [is_address(text) for text in ("http://x", "x:8100", "x:8100/v1", "[::1]:8100/v1")] == [True] * 4
    assert [is_address(text) for text in ("smollm2-135m", "org/model", "./model", "a:1")] == [False] * 4
