"""HTTP that is broken, half there, too large, too slow, or two requests at once."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

from tests.fuzz.server.attempts import HOST, KEY, Attempt, request
from tests.fuzz.server.bodies import CHAT, COMPLETIONS, GETS, HELLO

_BODY = json.dumps({"messages": HELLO, "max_tokens": 2}).encode()
_STREAM = json.dumps({"prompt": "hello", "max_tokens": 200, "stream": True}).encode()
_HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {KEY}\r\n".encode()
# As long as nothing is owed, a client that waits is only a client that waits: it leaves soon.
_SOON = 1.0


def _unowed(*pieces: bytes, pause: float = 0.0, patience: float = _SOON) -> Attempt:
    return Attempt("wire", pieces, pause=pause, owed=False, patience=patience)


def _chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return _HEAD + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + framed + end


def _bad_start(rng: random.Random) -> Attempt:
    start = rng.choice(
        (
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.0\r\n\r\n",
            b"GET /\r\n\r\n",
            b"GET  /  HTTP/1.1\r\nhost: x\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
            b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\n",
            b"GET http://example.org/ HTTP/1.1\r\nhost: example.org\r\n\r\n",
            b"GET /%00%ff%zz?%=&&=#x HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
            b"GET /" + b"a" * rng.choice((10, 8000, 70_000)) + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
            b"G\x00T / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(rng.randrange(256) for _ in range(64)),
            b"\r\n" * 5000 + b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
            bytes(rng.randrange(256) for _ in range(rng.randint(1, 2000))),
        )
    )
    return _unowed(start)


def _bad_fields(rng: random.Random) -> Attempt:
    fields = rng.choice(
        (
            b"x" * 70_000 + b": y\r\n",
            b"x: " + b"y" * rng.choice((10_000, 60_000, 2_000_000)) + b"\r\n",
            b"".join(b"x%d: y\r\n" % n for n in range(rng.choice((100, 5000)))),
            b"x: y\n",
            b" folded: y\r\n continued\r\n",
            b"no colon\r\n",
            b"x\x00y: z\r\n",
            b"x: \xff\xfe\x80\r\n",
            b"host: other\r\nhost: third\r\n",
            b"content-length: 5\r\ncontent-length: 6\r\n",
            b"content-length: -1\r\n",
            b"content-length: +5\r\n",
            b"content-length: 99999999999999999999999\r\n",
            b"content-length: 0x10\r\n",
            b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
            b"transfer-encoding: gzip, chunked\r\n",
            b"transfer-encoding: chunked, identity\r\n",
            b"transfer-encoding : chunked\r\n",
            b"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: x\r\n",
            b"upgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AAMAAABk\r\n",
            b"expect: 100-continue\r\ncontent-length: 5000000\r\n",
            b"expect: something\r\ncontent-length: 2\r\n",
            b"content-encoding: gzip\r\ncontent-length: 5\r\n",
            b"content-type: multipart/form-data\r\ncontent-length: 5\r\n",
            b"authorization: Bearer \xf0\x9f\x92\xa9\r\n",
            b"authorization: " + b"Bearer " * 2000 + b"\r\n",
            b"x-request-id: " + b"a" * 5000 + b"\r\n",
            b"origin: null\r\nsec-fetch-site: cross-site\r\n",
        )
    )
    return _unowed(_HEAD + fields + b"\r\n" + _BODY)


def _bad_chunks(rng: random.Random) -> Attempt:
    return rng.choice(
        (
            lambda: Attempt("wire", (_chunked(_BODY[:20], _BODY[20:]),)),
            lambda: Attempt("wire", (_chunked(*(bytes([byte]) for byte in _BODY)),)),
            lambda: _unowed(_chunked(_BODY, end=b"0\r\nx: y\r\nauthorization: Bearer z\r\n\r\n")),
            lambda: _unowed(_chunked(_BODY, end=b"0\r\n" + b"t: %s\r\n" % (b"v" * 1000) * rng.choice((10, 500, 4000)))),
            lambda: _unowed(_chunked(_BODY, end=b"")),
            lambda: _unowed(_chunked(_BODY, end=b"FFFFFFFFFFFFFFFFF\r\n")),
            lambda: _unowed(_chunked(_BODY, end=b"-1\r\n\r\n")),
            lambda: _unowed(_chunked(_BODY, end=b"zz\r\n")),
            lambda: _unowed(_chunked(_BODY, end=b"5;" + b"e=x;" * 20_000 + b"\r\n")),
            lambda: _unowed(_chunked(_BODY, end=b"5\r\nabcdefgh\r\n0\r\n\r\n")),
            lambda: _unowed(_chunked(*(b" " * 65_000 for _ in range(60)))),
            lambda: _unowed(b"0" * 200_000 + b"\r\n"),
        )
    )()


def _short_of_its_end(rng: random.Random) -> Attempt:
    whole = request("POST", CHAT, _BODY)
    return _unowed(whole[: rng.randrange(1, len(whole))], patience=rng.choice((0.0, 0.05, _SOON)))


def _dripping(rng: random.Random) -> Attempt:
    whole = request("POST", CHAT, _BODY)
    step = rng.choice((40, 80))
    pieces = tuple(whole[at : at + step] for at in range(0, len(whole), step))
    return Attempt("wire", pieces, pause=0.02)


def _pipelined(rng: random.Random) -> Attempt:
    number = rng.choice((2, 5, 50))
    bodies = [
        request("POST", COMPLETIONS, _STREAM, close=False) if rng.random() < 0.1 else _get(rng) for _ in range(number)
    ]
    return _unowed(b"".join(bodies) + request("GET", "/health/live"), patience=5.0)


def _get(rng: random.Random) -> bytes:
    return request(
        rng.choice(("GET", "HEAD", "OPTIONS", "DELETE", "PUT", "PATCH", "TRACE", "BREW")), rng.choice(GETS), close=False
    )


def _after_a_refusal(rng: random.Random) -> Attempt:
    """Without a key, and more bytes after the request than were announced."""
    refused = request("POST", CHAT, _BODY, key=None, close=False)
    return _unowed(refused, b"x" * rng.choice((10, 100_000, 3_000_000)))


def _gone_at_once(rng: random.Random) -> Attempt:
    return Attempt("wire", (request("POST", COMPLETIONS, _STREAM),), owed=False, patience=0.0)


_KINDS: Sequence[tuple[Callable[[random.Random], Attempt], int]] = (
    (_bad_start, 3),
    (_bad_fields, 5),
    (_bad_chunks, 3),
    (_short_of_its_end, 3),
    (_dripping, 1),
    (_pipelined, 2),
    (_after_a_refusal, 1),
    (_gone_at_once, 2),
)


def broken(rng: random.Random) -> Attempt:
    kinds, weights = zip(*_KINDS, strict=True)
    made: Attempt = rng.choices(kinds, weights)[0](rng)
    return made
