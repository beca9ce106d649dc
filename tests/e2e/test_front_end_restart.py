"""The front end is replaced on purpose, or killed: what clients see of either."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
from typer.testing import CliRunner

from chorus.cli import app
from chorus.messages.proto import engine_pb2 as wire
from chorus.messages.proto.engine_pb2_grpc import EngineStub
from chorus.platform.process.lifeline import VARIABLE
from tests.e2e.test_supervision import eventually
from tests.support.server import ChorusServer, running
from tests.support.tiny_model import write_tiny_model

DEADLINE = 120.0
TOKENS = 700
"""So many take about as long as a front end takes to start."""
MOST_TOKENS = 60_000
"""Far more than there is time for: whoever reads them leaves before."""
SAID = [{"role": "user", "content": "Tell me of the quick brown fox."}]
SEEDED = {"stream": True, "temperature": 1.0, "seed": 7, "max_tokens": TOKENS, "logit_bias": {"2": -100}}
RESPONSE = {"input": "The quick brown fox", "max_output_tokens": TOKENS, "stream": True, "temperature": 0}
COMPLETION = {"prompt": "The quick brown fox", **SEEDED}
ENDLESS = {**COMPLETION, "max_tokens": MOST_TOKENS}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": SAID, **SEEDED}),
    ("/v1/chat/completions", {"messages": SAID, **SEEDED, "n": 2}),
    ("/v1/completions", COMPLETION),
    ("/v1/completions", {**COMPLETION, "stream": False, "frequency_penalty": 0.5}),
    ("/v1/responses", RESPONSE),
    ("/v1/messages", {"messages": SAID, "max_tokens": TOKENS, "stream": True, "temperature": 0}),
]
# `chorus serve` without a terminal, as services are: with one, a SIGHUP says that the window was closed.
WITHOUT_TERMINAL = [sys.executable, "-c", "import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    folder = tmp_path_factory.mktemp("restart")
    model = write_tiny_model(folder / "tiny", "llama", vocab_size=512, max_position_embeddings=MOST_TOKENS + 4096)
    with ChorusServer(model, [], folder, enter=WITHOUT_TERMINAL) as server:
        yield server


def said_in(event: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """The text in one event, or in one whole answer, of any protocol, by its choice."""
    for choice in event.get("choices", ()):
        yield choice["index"], choice.get("text") or choice.get("delta", {}).get("content") or ""
    delta = event.get("delta", "")
    if isinstance(delta, str):
        yield 0, delta
    else:
        yield 0, delta.get("text", "")


class Asked:
    """One request, as its client sees it."""

    def __init__(self, server: ChorusServer, path: str, body: dict[str, Any]) -> None:
        self._url, self._body = server.url + path, body
        self.begun = threading.Event()
        self.leaves = threading.Event()
        self.texts: defaultdict[int, str] = defaultdict(str)
        self.last = ""
        self.response_id = ""

    def read(self) -> Asked:
        with httpx.stream("POST", self._url, json=self._body, timeout=DEADLINE) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                self._take(line.removeprefix("data: "))
                if self.leaves.is_set():
                    break
        return self

    def _take(self, line: str) -> None:
        self.last = line or self.last
        if not line.startswith("{"):
            return
        event = json.loads(line)
        self.response_id = event.get("response", {}).get("id") or self.response_id
        for choice, text in said_in(event):
            self.texts[choice] += text
            if text:
                self.begun.set()

    @property
    def complete(self) -> bool:
        if not self._body["stream"]:
            return bool(self.texts[0])
        return self.last == "[DONE]" or json.loads(self.last)["type"] in {"message_stop", "response.incomplete"}


def restart(server: ChorusServer) -> str:
    port = server.url.rpartition(":")[2]
    done = CliRunner().invoke(app, ["restart", "--front-end", "--port", port], catch_exceptions=False)
    return " ".join(done.output.split())


def front_ends(server: ChorusServer) -> list[psutil.Process]:
    return running(server.processes(), "chorus.api")


@contextmanager
def something_to_finish(server: ChorusServer, pool: ThreadPoolExecutor) -> Iterator[None]:
    """A stream for as long as this lasts, however long the next front end takes to start."""
    endless = Asked(server, "/v1/completions", ENDLESS)
    reading = pool.submit(endless.read)
    try:
        assert endless.begun.wait(DEADLINE)
        yield
        assert not reading.done(), "it was there all the while"
    finally:
        endless.leaves.set()
        reading.result()


def test_every_stream_is_whole_and_the_same_while_the_front_end_is_replaced(server: ChorusServer) -> None:
    with ThreadPoolExecutor(len(REQUESTS) + 2) as pool, httpx.Client(base_url=server.url, timeout=DEADLINE) as kept:

        def ask_all() -> tuple[list[Asked], list[Future[Asked]]]:
            asked = [Asked(server, *request) for request in REQUESTS]
            return asked, [pool.submit(each.read) for each in asked]

        def ask_again_and_again() -> set[int]:
            """A client that keeps its connection, and one that never does."""
            seen = set()
            while not replaced.is_set():
                seen |= {kept.get("/health").status_code}
                seen |= {httpx.get(f"{server.url}/health", timeout=DEADLINE).status_code}
            return seen

        # Beside the same stream both times: what shares a step may round alike.
        with something_to_finish(server, pool):
            undisturbed = [answer.result() for answer in ask_all()[1]]
        (old,) = front_ends(server)
        with something_to_finish(server, pool):
            asked, answers = ask_all()
            for each in asked:
                assert each._body["stream"] is False or each.begun.wait(DEADLINE)
            replaced = threading.Event()
            meanwhile = pool.submit(ask_again_and_again)
            try:
                assert f"process {old.pid} finishes its streams" in restart(server)
                assert f"(process {old.pid}) still finishes its streams" in restart(server)
            finally:
                replaced.set()
            assert meanwhile.result() == {200}
            for answer, before in zip(answers, undisturbed, strict=True):
                after = answer.result()
                assert after.complete
                assert after.texts == before.texts
        assert eventually(lambda: not old.is_running())
        assert [each.pid for each in front_ends(server)] != [old.pid]
    body = {**RESPONSE, "max_output_tokens": 4, "stream": False, "previous_response_id": asked[4].response_id}
    assert httpx.post(f"{server.url}/v1/responses", json=body, timeout=DEADLINE).status_code == 200


def test_a_hang_up_replaces_it_too(server: ChorusServer) -> None:
    (old,) = front_ends(server)
    server.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: not old.is_running()), server.log
    assert len(front_ends(server)) == 1
    assert server.text("The quick brown fox", max_tokens=2)


def test_a_killed_front_end_takes_its_clients_along_visibly_and_its_requests_too(server: ChorusServer) -> None:
    (front_end,) = front_ends(server)
    folder = Path(front_end.environ()[VARIABLE]).parent
    # Neither may be at its end when the front end is, however late that is killed.
    cut, unanswered = (Asked(server, "/v1/completions", {**ENDLESS, "stream": stream}) for stream in (True, False))
    with ThreadPoolExecutor(2) as pool, grpc.insecure_channel(f"unix:{folder}/engine.sock") as channel:
        engine = EngineStub(channel)
        answers = [pool.submit(each.read) for each in (cut, unanswered)]
        assert cut.begun.wait(DEADLINE)
        assert eventually(lambda: engine.Describe(wire.DescribeRequest()).running == 2)
        front_end.kill()
        for answer in answers:
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                answer.result()
        # No front end is there yet that could have asked for it.
        assert eventually(lambda: engine.Describe(wire.DescribeRequest()).running == 0)
    again = Asked(server, "/v1/completions", COMPLETION).read()
    assert again.complete
    # Each may end within a character: the one where it was cut, the other at its last token.
    shorter, longer = sorted((each.texts[0].rstrip("\ufffd") for each in (cut, again)), key=len)
    assert longer.startswith(shorter)
