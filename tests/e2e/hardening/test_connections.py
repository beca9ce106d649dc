"""Connections that send without end, hold back, or do not read: each comes to an end and costs nobody else anything."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import psutil
import pytest

from chorus.security.key_rules import key_hash, new_key
from tests.api.conftest import eventually
from tests.api.scripted_engine import say, say_until_cancelled
from tests.e2e.hardening.front_end import (
    DEADLINE,
    FrontEnd,
    allow_many_files,
    front_end,
    read_to_end,
    send_until_refused,
)

MIB = 1 << 20
OPEN_FILES = 1024
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
ALICE = new_key()
STRANGERS = 32
PATIENCE_SECONDS = 3
"""How long a test waits that waits for it; those that must be served meanwhile are not held up for as long."""


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    """With nothing but settings that there have always been."""
    with front_end(tmp_path_factory.mktemp("open"), OPEN_FILES) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    keys = [{"id": "alice", "sha256": key_hash(ALICE)}]
    limits = {
        "max_strangers": STRANGERS,
        "head_timeout_seconds": PATIENCE_SECONDS,
        "idle_timeout_seconds": PATIENCE_SECONDS,
        "write_timeout_seconds": PATIENCE_SECONDS,
    }
    with front_end(tmp_path_factory.mktemp("guarded"), 256, keys=keys, limits=limits) as running:
        running.engine.default = say([70])
        yield running


@pytest.mark.parametrize("path", [b"/nothing", b"/v1/chat/completions"], ids=["answered", "being read"])
@pytest.mark.parametrize("trailer", [b"x-more: " + b"y" * 4096 + b"\r\n", b"y" * 4096], ids=["many", "one long"])
def test_trailers_without_end_are_cut_off_and_kept_nowhere(open_to_all: FrontEnd, path: bytes, trailer: bytes) -> None:
    """Finding 2."""
    before = open_to_all.memory()
    with open_to_all.connect() as connection:
        connection.sendall(
            b"POST " + path + b" HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: "
        )
        taken = send_until_refused(connection, trailer * 64, 64 * MIB)
        grown = open_to_all.memory() - before
    assert taken < 32 * MIB
    assert grown < 16 * MIB


def test_a_head_that_drips_or_never_comes_ends_the_connection(open_to_all: FrontEnd) -> None:
    """Finding 10."""
    drips = {b"silence": [], b"GET /health HTTP/1.1\r\nhost: localhost\r\n": [b"x-drip: 1\r\n"], b"\r\n": [b"\r\n"]}
    with ExitStack() as stack:
        connections = []
        for first, again in drips.items():
            connection = stack.enter_context(open_to_all.connect())
            if again:
                connection.sendall(first)
            connections.append((connection, b"".join(again)))
        closed = threading.Event()

        def drip() -> None:
            while not closed.wait(0.2):
                for connection, again in connections:
                    try:
                        connection.sendall(again)
                    except OSError:
                        continue

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            ended = [_ends(connection) for connection, _ in connections]
        finally:
            closed.set()
            dripping.join()
    assert ended == [True] * len(drips)


def test_silent_connections_do_not_lock_anybody_out(open_to_all: FrontEnd) -> None:
    """Finding 10."""
    allow_many_files(4096)
    with ExitStack() as stack:
        for _ in range(OPEN_FILES + 76):
            stack.enter_context(open_to_all.connect())
        assert open_to_all.answers()


def test_a_client_with_a_key_is_served_amid_strangers_who_share_few_places(guarded: FrontEnd) -> None:
    process = psutil.Process(guarded.api.process.pid)
    quiet = len(process.net_connections())
    with httpx.Client(base_url=guarded.api.url, timeout=DEADLINE, headers={"x-api-key": ALICE}) as alice:
        assert alice.get("/v1/models").status_code == 200
        with ExitStack() as stack:
            strangers = [stack.enter_context(guarded.connect()) for _ in range(300)]
            for number, stranger in enumerate(strangers):
                if number % 3 == 1:
                    stranger.sendall(b"GET /v1/models HTTP/1.1\r\n")
                elif number % 3 == 2:
                    stranger.close()
                if number % 50 == 0:
                    assert alice.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200
            with httpx.Client(base_url=guarded.api.url, timeout=DEADLINE, headers={"x-api-key": ALICE}) as again:
                assert again.get("/v1/models").status_code == 200
            # Those that are being closed are still there for a moment.
            eventually(lambda: len(process.net_connections()) <= quiet + STRANGERS + 3, "no more strangers than places")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (CHAT + b"content-length: 5000000\r\n\r\n" + b"x" * 100_000, 401),
        (CHAT + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", 401),
        (b"PUT /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\nab", 401),
    ],
)
def test_who_is_refused_before_all_was_said_reads_why_and_is_closed(
    guarded: FrontEnd, request_bytes: bytes, status: int
) -> None:
    answer = guarded.exchange(request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (CHAT + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (CHAT + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!", 400),
        (CHAT + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (CHAT.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (CHAT + b"host: localhost\r\ncontent-length: 0\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (CHAT + b"a: b\r\n folded\r\n\r\n", 400),
        (CHAT + b"x: y\r\n" * 200 + b"\r\n", 431),
        (CHAT + b"x: " + b"y" * 400_000, 431),
        (b"GET /health\r\n\r\n", 400),
        (b"CONNECT localhost:22 HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (CHAT + b"transfer-encoding: chunked\r\n\r\nnot a number\r\n", 400),
        (CHAT + b"transfer-encoding: chunked\r\n\r\n2;" + b"e" * 400_000, 431),
    ],
)
def test_what_could_be_read_in_two_ways_or_has_no_end_is_refused(
    open_to_all: FrontEnd, request_bytes: bytes, status: int
) -> None:
    answer = open_to_all.exchange(request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert len(re.findall(rb"HTTP/1.1 \d", answer)) == 1


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_a_wish_for_another_protocol_is_answered_in_this_one(open_to_all: FrontEnd, protocol: bytes) -> None:
    open_to_all.engine.next(say([70]))
    wish = b"connection: upgrade, close\r\nupgrade: " + protocol + b"\r\n"
    answer = open_to_all.exchange(CHAT + wish + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_requests_sent_ahead_are_answered_in_order_and_only_so_many(open_to_all: FrontEnd) -> None:
    ask = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    last = ask.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert open_to_all.exchange(ask * 3 + last).count(b"HTTP/1.1 200 ") == 4
    assert open_to_all.exchange(ask * 5000).count(b"HTTP/1.1 200 ") <= 10


def test_a_client_that_leaves_is_noticed_also_behind_a_request_sent_ahead(open_to_all: FrontEnd) -> None:
    open_to_all.engine.next(say_until_cancelled([70]))
    open_to_all.engine.runs.clear()
    with open_to_all.connect() as connection:
        connection.sendall(CHAT + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        eventually(lambda: bool(open_to_all.engine.runs), "the request has begun")
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    open_to_all.engine.runs[0].wait_cancelled()


def test_a_stream_is_not_disturbed_by_what_its_client_says_meanwhile(open_to_all: FrontEnd) -> None:
    release = threading.Event()

    def script(run: object) -> None:
        assert release.wait(DEADLINE)
        say([70])(run)  # type: ignore[arg-type]

    open_to_all.engine.next(script)
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": True}).encode()
    with open_to_all.connect() as connection:
        connection.sendall(CHAT + b"content-length: %d\r\n\r\n" % len(body) + body + b"\0nonsense")
        release.set()
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert len(re.findall(rb"HTTP/1.1 \d", answer)) == 1
    assert b"[DONE]" in answer


def test_who_does_not_read_is_let_go(guarded: FrontEnd) -> None:
    """The answers to what is asked ahead are more than the system keeps for a reader that is slow."""
    process = psutil.Process(guarded.api.process.pid)
    ask = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nx-api-key: %b\r\n\r\n" % ALICE.encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(guarded.api.address)
        connection.sendall(ask * 8)
        port = connection.getsockname()[1]
        eventually(
            lambda: all(other.raddr.port != port for other in process.net_connections() if other.raddr),
            "the connection is closed",
        )


def test_who_says_nothing_more_is_let_go(guarded: FrontEnd) -> None:
    with guarded.connect() as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 ")


def _ends(connection: socket.socket) -> bool:
    try:
        read_to_end(connection)
    except TimeoutError:
        return False
    return True
