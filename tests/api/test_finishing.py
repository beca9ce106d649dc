"""A front end that was told to finish: another one accepts on the same socket, and nobody loses a word."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from chorus.config.front_end import FINISH
from chorus.messages.proto import engine_pb2 as pb
from tests.api.conftest import ApiProcess, eventually
from tests.api.scripted_engine import DEADLINE, Run, ScriptedEngine, say

CHAT = "/v1/chat/completions"
STREAM = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
CLOSE = {"connection": "close"}
LIVE = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"


@contextmanager
def finishing(api: ApiProcess) -> Iterator[None]:
    """The old process inside, the new one afterwards."""
    old = api.process
    api.start()
    new, api.process = api.process, old
    old.send_signal(FINISH)
    eventually(lambda: "another front end accepts now" in api.log.read_text(), "the signal was heard")
    try:
        yield
    finally:
        api.process = new
    assert old.wait(DEADLINE) == 0
    api.wait_until_live()


def words(connection: socket.socket) -> tuple[bytes, bytes]:
    """One answer of known length: its head and its body."""
    got = b""
    while b"\r\n\r\n" not in got:
        more = connection.recv(4096)
        assert more, "closed without a word"
        got += more
    head, _, body = got.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += connection.recv(4096)
    return head.lower(), body


def test_a_stream_goes_on_and_who_comes_meanwhile_is_served_by_the_next(
    start_api: Callable[..., ApiProcess], engine: ScriptedEngine
) -> None:
    api = start_api()
    may_end = threading.Event()

    def waits(run: Run) -> None:
        run.send(70)
        assert may_end.wait(DEADLINE)
        run.finish(pb.STOP, tokens=[71])

    engine.next(waits, say([72]))
    with httpx.stream("POST", api.url + CHAT, json=STREAM, timeout=DEADLINE, headers=CLOSE) as response:
        lines = response.iter_lines()
        next(lines)
        with finishing(api):
            body = {**STREAM, "stream": False}
            assert httpx.post(api.url + CHAT, json=body, timeout=DEADLINE).status_code == 200
            assert api.process.poll() is None
            may_end.set()
            assert [line for line in lines if line][-1] == "data: [DONE]"


def test_a_connection_is_closed_after_an_answer_that_says_so_and_not_before(
    start_api: Callable[..., ApiProcess],
) -> None:
    """Whether it has asked before or never: what it sends now is answered."""
    api = start_api()
    with socket.create_connection(api.address, DEADLINE) as used, socket.create_connection(api.address) as fresh:
        used.sendall(LIVE)
        assert b"connection: close" not in words(used)[0]
        fresh.settimeout(DEADLINE)
        fresh.sendall(LIVE[:20])
        api.wait_until_live()
        with finishing(api):
            used.sendall(LIVE)
            fresh.sendall(LIVE[20:])
            for each in (used, fresh):
                head, body = words(each)
                assert body
                assert b"connection: close" in head
                assert each.recv(1) == b""


def test_a_stop_ends_one_that_is_finishing(start_api: Callable[..., ApiProcess], engine: ScriptedEngine) -> None:
    api = start_api()
    engine.next(lambda run: run.send(70))
    with httpx.stream("POST", api.url + CHAT, json=STREAM, timeout=DEADLINE) as response:
        lines = response.iter_lines()
        next(lines)
        with finishing(api):
            api.process.terminate()
            assert '"shutting_down"' in [line for line in lines if line][-1]


def test_the_next_front_end_goes_on_from_a_response_that_this_one_stored(
    start_api: Callable[..., ApiProcess], engine: ScriptedEngine, tmp_path: Path
) -> None:
    folder = tmp_path / "responses"
    api = start_api(responses_file=str(folder / "kept.sqlite"))
    engine.next(say([70, 71]), say([72]), say([73]))
    with httpx.Client(base_url=api.url, timeout=DEADLINE) as client:
        kept = client.post("/v1/responses", json={"input": "My cat is called Moritz."}).json()["id"]
        unkept = client.post("/v1/responses", json={"input": "Secret.", "store": False}).json()["id"]
    on_disk = b"".join(each.read_bytes() for each in folder.iterdir())
    assert b"Moritz" in on_disk
    assert b"Secret" not in on_disk
    with finishing(api):
        pass
    with httpx.Client(base_url=api.url, timeout=DEADLINE) as client:
        body = {"input": "And?", "previous_response_id": kept}
        assert client.post("/v1/responses", json=body).json()["previous_response_id"] == kept
        refused = client.post("/v1/responses", json={**body, "previous_response_id": unkept})
        assert refused.json()["error"]["code"] == "response_not_found"
