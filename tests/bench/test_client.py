"""Endpoints that do something else than to answer: each is one line that says what, and what to do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest

from chorus.bench.client import Client, Endpoint, EndpointFailed, request_body
from chorus.bench.figures import Answer

PIECE = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 4}}\n\n'
DONE = b"data: [DONE]\n\n"
SECONDS = 60.0


def reply(body: bytes, status: str = "200 OK", missing: int = 0) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body) + missing, body)


async def asked(raw: bytes, ask: Callable[[Client], Awaitable[object]], key: str | None, seconds: float) -> object:
    """What a client makes of an endpoint that sends these bytes whatever it is asked; of none, it never answers."""
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        if not raw:
            await left.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with Client(Endpoint(f"http://127.0.0.1:{port}", key), 1, seconds) as client:
            return await ask(client)
    finally:
        left.set()
        server.close()


def answer_of(raw: bytes, key: str | None = None, seconds: float = SECONDS) -> Answer:
    async def ask(client: Client) -> Answer:
        return (await client.answer(request_body("m", 4, messages=[{"role": "user", "content": "Hello"}]), 0.0))[0]

    return asyncio.run(asked(raw, ask, key, seconds))


def model_of(raw: bytes) -> str:
    return asyncio.run(asked(raw, lambda client: client.only_model(), None, SECONDS))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (reply(b"<html>Welcome</html>"), "is no OpenAI endpoint, it did not answer with a stream of events: give its"),
        (reply(b"data: <html>\n\n"), "is no OpenAI endpoint"),
        (reply(b"<html>", "404 Not Found"), "is no OpenAI endpoint, it has no /v1/chat/completions: give its address"),
        (
            reply(b"", "308 Moved\r\nlocation: https://x/v1/chat/completions"),
            "is elsewhere: give its address as https://x",
        ),
        (reply(b"", "401 Unauthorized"), "asks for a key: give it with --api-key"),
        (reply(b"", "429 Too Many Requests"), "ask for fewer --streams"),
        (
            reply(b'{"error": {"message": "no\\nsuch\\u001b[2J model"}}', "404 Not Found"),
            "answered 404: no such [2J model",
        ),
        (reply(b'{"error": "busy"}', "503 Service Unavailable"), "answered 503: busy"),
        (reply(b"[1]", "500 Oops"), "answered 500: [1]"),
        (reply(PIECE), "ended a stream early, after 1 piece of text: its log says why"),
        (reply(PIECE, missing=99), "ended a stream early: its connection was closed; its log says why"),
        (reply(PIECE + b'data: {"error": {"message": "no room"}}\n\n'), "failed in mid-stream: no room"),
        (reply(PIECE * 10_000), "sends more than was asked for"),
        (b"nonsense\r\n\r\n", "closed the connection without an answer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_endpoint_that_does_not_answer_is_told_in_one_line(raw: bytes, said: str) -> None:
    with pytest.raises(EndpointFailed) as told:
        answer_of(raw)
    assert said in str(told.value)
    assert str(told.value).isprintable()


def test_a_key_that_is_refused_is_told() -> None:
    with pytest.raises(EndpointFailed, match="refuses this key: give another"):
        answer_of(reply(b"", "403 Forbidden"), key="wrong")


def test_an_endpoint_that_never_answers_is_not_waited_for() -> None:
    with pytest.raises(EndpointFailed, match=r"took longer than 0\.1 s: .* --timeout"):
        answer_of(b"", seconds=0.1)


def test_nobody_at_all_is_told() -> None:
    async def ask() -> None:
        async with Client(Endpoint("http://127.0.0.1:9"), 1, SECONDS) as client:
            await client.only_model()

    with pytest.raises(EndpointFailed, match=r"nothing answers at http://127\.0\.0\.1:9: start it"):
        asyncio.run(ask())


@pytest.mark.parametrize("text", [float("nan"), "\ud800"])
def test_what_no_request_can_hold_is_told(text: object) -> None:
    async def ask() -> None:
        async with Client(Endpoint("http://127.0.0.1:9"), 1, SECONDS) as client:
            await client.whole({"user": text})

    with pytest.raises(EndpointFailed, match="the request cannot be sent: "):
        asyncio.run(ask())


@pytest.mark.parametrize(
    ("proxy", "said"), [("socks5://127.0.0.1:9", "Using SOCKS proxy, but"), ("gopher://127.0.0.1:9", "Unknown scheme")]
)
def test_a_proxy_of_the_environment_that_cannot_be_used_is_told(
    monkeypatch: pytest.MonkeyPatch, proxy: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(EndpointFailed, match=f"http://elsewhere cannot be asked: {said}"):
        Client(Endpoint("http://elsewhere", through_proxy=True), 1, SECONDS)


def test_usage_counts_the_tokens_and_pieces_do_where_there_is_none() -> None:
    told, untold = answer_of(reply(PIECE * 2 + USAGE + DONE)), answer_of(reply(PIECE * 2 + DONE))
    assert (told.prompt_tokens, told.completion_tokens, told.cached_tokens) == (7, 4, None)
    assert (untold.prompt_tokens, untold.completion_tokens) == (None, 2)
    assert len(told.arrivals) == len(untold.arrivals) == 2


def test_the_only_model_is_meant_and_of_several_all_are_named() -> None:
    assert model_of(reply(b'{"data": [{"id": "m"}]}')) == "m"
    with pytest.raises(EndpointFailed, match="serves 2 models, say which with --model: m, n"):
        model_of(reply(b'{"data": [{"id": "m"}, {"id": "n"}]}'))
    with pytest.raises(EndpointFailed, match="serves no model"):
        model_of(reply(b'{"data": []}'))
    with pytest.raises(
        EndpointFailed, match="is no OpenAI endpoint, it tells no models: say which model with --model, or give its"
    ):
        model_of(reply(b"<html></html>"))
