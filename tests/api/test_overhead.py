"""What the front end does not do: wake up while nothing happens, or build again what did not change."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from chorus.api.openai.chat.wire import ChatFormat
from chorus.api.openai.choices import ChoicesFormat, TokenRun
from chorus.api.openai.completions.wire import CompletionFormat
from chorus.api.server import protocol
from chorus.api.server.connections import Pool
from chorus.api.server.protocol import SharedState
from chorus.config.sections import Limits
from chorus.serving.generation import AnswerDelta
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.text.parsers.toolkit.pieces import Content, Reasoning, ToolCallArguments, ToolCallStart
from tests.api.conftest import ApiProcess
from tests.api.scripted_engine import DEADLINE

IDLE_SECONDS = 2.0
TEXTS = ["plain", " ", 'quote " and \\', "\0", '"\\u0000"', "line\nbreak", "caf\u00e9 \U0001f600", "\u2028"]


def wakes(pid: int) -> int:
    """How often the main thread of a process went to sleep so far."""
    status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@pytest.mark.linux("counts of waits")
def test_the_loop_of_an_idle_front_end_sleeps(start_api: Callable[..., ApiProcess]) -> None:
    """Once what its start began is over: it is live before it has reached its engine."""
    api = start_api()
    deadline = time.monotonic() + DEADLINE
    while True:
        before = wakes(api.process.pid)
        time.sleep(IDLE_SECONDS)
        if (woke := wakes(api.process.pid) - before) < 5:
            break
        assert time.monotonic() < deadline, f"woke {woke} times in {IDLE_SECONDS} s"


def test_a_sleeping_front_end_still_ends_when_it_is_told_to(start_api: Callable[..., ApiProcess]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        api = start_api()
        api.process.send_signal(number)
        assert api.process.wait(DEADLINE) == 0


def test_every_response_has_the_date_of_its_own_second(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((784111777.0, 784111777.9, 784111778.0))
    monkeypatch.setattr(protocol.time, "time", lambda: next(moments))
    state = SharedState(Limits(), Pool(most=1, most_strangers=1, keys_required=False))
    seen = [state.default_headers for _ in range(3)]
    assert seen[0] == seen[1] == [(b"date", b"Sun, 06 Nov 1994 08:49:37 GMT")]
    assert seen[2] == [(b"date", b"Sun, 06 Nov 1994 08:49:38 GMT")]


def test_an_answer_after_a_rest_has_the_date_of_now(http: httpx.Client) -> None:
    http.get("/health/live")
    time.sleep(IDLE_SECONDS)
    asked = int(time.time())
    response = http.get("/health/live")
    assert response.headers.get_list("date") == [response.headers["date"]]
    assert asked <= parsedate_to_datetime(response.headers["date"]).timestamp() <= time.time()


def test_a_refusal_of_what_is_not_http_has_a_date_too(api: ApiProcess) -> None:
    place = urlsplit(api.url)
    with socket.create_connection((place.hostname, place.port), DEADLINE) as connection:
        connection.sendall(b"no such thing\r\n\r\n")
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"\r\ndate: " in answer


def chat(usage: bool) -> ChatFormat:
    return ChatFormat("id", 1, 'a "\\u0000" model', "fp", tokenizer(), ((1,),), 2, include_usage=usage)


def completion(usage: bool) -> CompletionFormat:
    return CompletionFormat("id", 1, 'a "\\u0000" model', "fp", tokenizer(), ((1,),), 2, include_usage=usage)


def tokenizer() -> ServedTokenizer:
    """Streams that show no tokens never ask for it."""
    return ServedTokenizer.__new__(ServedTokenizer)


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("make", [chat, completion])
def test_a_text_in_a_frame_makes_the_chunk_that_would_be_built_anew(
    make: Callable[[bool], ChoicesFormat], usage: bool
) -> None:
    wire = make(usage)
    kind = "content" if make is chat else "text"
    for text in TEXTS * 2:
        for choice in (0, 1):
            built = wire.chunk(choice, wire.shown(kind, text), TokenRun())
            assert wire.delta(AnswerDelta(choice, (Content(text),), (7,))) == built


def test_reasoning_text_and_calls_of_one_event_keep_their_order() -> None:
    pieces = (Reasoning("hm"), Content("so"), ToolCallStart(0, "call_1", "f"), ToolCallArguments(0, "{}"))
    events = chat(usage=False).delta(AnswerDelta(0, pieces, (7,))).decode().split("\n\n")[:-1]
    shown = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
    assert [next(iter(delta)) for delta in shown] == ["reasoning_content", "content", "tool_calls", "tool_calls"]
    assert shown[0] == {"reasoning_content": "hm"}


@pytest.mark.linux("gRPC's choice of threads")
def test_grpc_is_told_before_it_is_imported_and_a_choice_of_the_user_stands() -> None:
    script = (
        "import os, sys; from chorus.api.__main__ import grpc_tuning; assert 'grpc' not in sys.modules;"
        "grpc_tuning.spare_threads(); print(os.environ['GRPC_EXPERIMENTS'])"
    )

    def chosen(**environment: str) -> str:
        own = {key: value for key, value in os.environ.items() if key != "GRPC_EXPERIMENTS"}
        command = [sys.executable, "-c", script]
        return subprocess.run(command, env={**own, **environment}, capture_output=True, text=True, check=True).stdout

    assert chosen() == "-event_engine_client\n"
    assert chosen(GRPC_EXPERIMENTS="mine") == "mine\n"
