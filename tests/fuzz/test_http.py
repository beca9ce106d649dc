"""Bytes on the API's port: an answer or a closed connection, never a failure of the server, and others are served."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.conftest import ApiProcess, settings_for
from tests.api.scripted_engine import ScriptedEngine, say
from tests.fuzz.server import wire
from tests.support.sockets import short
from tests.support.tiny_tokenizer import write_tiny_tokenizer

READ_SECONDS = 60.0


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    folder = tmp_path_factory.mktemp("http")
    write_tiny_tokenizer(folder, 512)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    engine = ScriptedEngine(short(folder) / "engine.sock", 512)
    engine.default = say([70])
    served = ApiProcess(Path(folder), settings_for(engine, folder, log_level="error"))
    served.wait_until_live()
    yield served
    served.stop()
    engine.stop()


def exchange(api: ApiProcess, *pieces: bytes) -> bytes:
    """Everything that comes back for these bytes until the server closes; nothing more is ever sent."""
    host, port = api.url.removeprefix("http://").split(":")
    received = bytearray()
    with socket.create_connection((host, int(port)), timeout=READ_SECONDS) as connection:
        # A server that has said what it had to say may close while we are still sending.
        with suppress(OSError):
            for piece in pieces:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := connection.recv(65536):
                received += data
    return bytes(received)


@pytest.fixture(scope="module")
def others(api: ApiProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=api.url, timeout=READ_SECONDS) as client:
        yield client


def unharmed(others: httpx.Client, received: bytes) -> None:
    statuses = [int(code) for code in re.findall(rb"(?:^|\n|\})HTTP/1\.1 (\d{3}) ", received)]
    assert all(status < 500 for status in statuses), received[:2000]
    assert not received or statuses, received[:200]
    assert others.get("/health/live").status_code == 200


words = st.sampled_from(
    (
        *(
            b"GET",
            b"POST",
            b"PRI",
            b" ",
            b"  ",
            b"/",
            b"*",
            b"/v1/chat/completions",
            b"/health",
            b"http://a/",
            b"\r\n",
            b"\n",
            b"\r",
        ),
        *(
            b"HTTP/1.1",
            b"HTTP/1.0",
            b"HTTP/2.0",
            b"host: x",
            b"content-length: ",
            b"transfer-encoding: chunked",
            b"expect: ",
        ),
        *(
            b"100-continue",
            b"connection: close",
            b"connection: upgrade",
            b"upgrade: websocket",
            b":",
            b"0",
            b"5",
            b"-1",
            b"ffffffffffffffff",
        ),
        *(
            b"0\r\n\r\n",
            b"{}",
            b'{"messages": []}',
            b"\x00",
            b"\xff\xfe",
            b"a" * 500,
            b"\t",
            b"x: y",
            b"%00",
            b"?a=b",
            b"\r\n\r\n",
        ),
    )
)


@given(pieces=st.lists(st.lists(words, max_size=12).map(b"".join), min_size=1, max_size=3))
def test_a_soup_of_http_harms_nobody(api: ApiProcess, others: httpx.Client, pieces: list[bytes]) -> None:
    unharmed(others, exchange(api, *pieces))


@given(rng=st.randoms(use_true_random=False))
def test_broken_http_harms_nobody(api: ApiProcess, others: httpx.Client, rng: object) -> None:
    unharmed(others, exchange(api, *wire.broken(rng).pieces))  # type: ignore[arg-type]
