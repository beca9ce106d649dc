"""Asks an OpenAI endpoint as its user would; whatever it does instead of answering is told in one line."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from chorus.bench.figures import Answer
from chorus.bench.stream import Chunk, NoEvents, Reading, event_error, read
from chorus.errors import ChorusError

CONNECT_SECONDS = 10.0
ASK_SECONDS = 30.0
MODELS = "/v1/models"
KEPT_SECONDS = 2.0
"""Less than any server keeps an idle connection: one that is closed just as it is used would be an error."""
LONGEST_TOLD = 300
NAME_IT = "say which model with --model, or "
_MOST_TOLD_BYTES = 64 << 10
_MOST_LIST_BYTES = 4 << 20
_BYTES_PER_TOKEN = 16 << 10
"""More than anybody wraps a token in, log probabilities among it."""

Message = dict[str, str]


class EndpointFailed(ChorusError):
    """An endpoint did something else than to answer: says what, and what to do about it."""


@dataclass(frozen=True)
class Endpoint:
    """What is measured, and what it takes to be let in."""

    url: str
    """Without /v1."""
    key: str | None = None
    trusted: ssl.SSLContext | bool = True
    through_proxy: bool = False
    """As the environment says."""


class Client:
    """`async with Client(endpoint, 8, 600) as client: await client.answer(…)`"""

    def __init__(self, endpoint: Endpoint, most_streams: int, seconds: float) -> None:
        self._url = endpoint.url
        self._key = endpoint.key
        self._seconds = seconds
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {},
            verify=endpoint.trusted,
            trust_env=endpoint.through_proxy,
            timeout=httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS)),
            limits=httpx.Limits(max_connections=most_streams, keepalive_expiry=KEPT_SECONDS),
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def only_model(self) -> str:
        """The one model that is served there."""
        chunks = await self._chunks("GET", MODELS, None, _MOST_LIST_BYTES, min(self._seconds, ASK_SECONDS))
        try:
            listed = orjson.loads(b"".join(data for _, data in chunks))["data"]
            names = [str(entry["id"]) for entry in listed]
        except (ValueError, KeyError, TypeError):
            raise self._no_openai("tells no models", NAME_IT) from None
        if len(names) == 1:
            return names[0]
        if not names:
            raise EndpointFailed(f"{self._url} serves no model: load one, or say which with --model")
        shown = one_line(", ".join(names))
        raise EndpointFailed(f"{self._url} serves {len(names)} models, say which with --model: {shown}")

    async def answer(self, body: dict[str, Any], zero: float) -> tuple[Answer, str]:
        """How a request was answered, with moments counted from `zero`, and its text."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        limit = _MOST_TOLD_BYTES + body["max_tokens"] * _BYTES_PER_TOKEN
        sent = time.perf_counter()
        chunks = await self._chunks("POST", path, body, limit, self._seconds)
        ended = time.perf_counter()
        # Read only now: while text comes, whoever measures should be as little in its way as can be.
        reading = self._read(chunks)
        usage = reading.usage
        answer = Answer(
            sent=sent - zero,
            arrivals=tuple(when - zero for when in reading.arrivals),
            ended=ended - zero,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else len(reading.arrivals),
            cached_tokens=usage.cached_tokens if usage else None,
        )
        return answer, reading.text

    def _read(self, chunks: Sequence[Chunk]) -> Reading:
        try:
            reading = read(chunks)
        except NoEvents:
            raise self._no_openai("did not answer with a stream of events") from None
        if reading.error:
            raise EndpointFailed(f"{self._url} failed in mid-stream: {one_line(reading.error)}")
        if not reading.finished:
            many = len(reading.arrivals)
            came = f"{many} piece{'' if many == 1 else 's'} of text"
            raise EndpointFailed(f"{self._url} ended a stream early, after {came}: its log says why")
        return reading

    async def _chunks(
        self, method: str, path: str, body: dict[str, Any] | None, limit: int, seconds: float
    ) -> list[Chunk]:
        """All bytes of an answer, each with the moment it came."""
        chunks: list[Chunk] = []
        size = 0
        try:
            async with (
                asyncio.timeout(seconds),
                self._http.stream(method, self._url + path, json=body) as response,
            ):
                if response.status_code != 200:
                    limit = _MOST_TOLD_BYTES
                async for data in response.aiter_bytes():
                    chunks.append((time.perf_counter(), data))
                    size += len(data)
                    if size > limit:
                        raise self._no_openai("sends more than was asked for")
        except (TimeoutError, httpx.ReadTimeout, httpx.WriteTimeout):
            raise EndpointFailed(
                f"{self._url}{path} took longer than {seconds:g} s: ask for less with --tokens or --prompt-tokens, "
                "or wait longer with --timeout"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EndpointFailed(self._unanswered(error, bool(chunks))) from error
        if response.status_code != 200:
            raise self._refused(path, response, b"".join(data for _, data in chunks))
        return chunks

    def _unanswered(self, error: httpx.HTTPError | httpx.InvalidURL, begun: bool) -> str:
        text = str(error)
        if begun:
            return f"{self._url} ended a stream early: its connection was closed; its log says why"
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return (
                f"{self._url} shows a certificate that is not trusted here: set SSL_CERT_FILE to its authority's file"
            )
        if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
            return f"{self._url} closed the connection without an answer: its log says why; or is it https, not http?"
        if "SSL" in text:
            return f"{self._url} does not speak HTTPS: give its address with http://"
        return f"nothing answers at {self._url}: start it, or give the address at which it listens"

    def _refused(self, path: str, response: httpx.Response, body: bytes) -> EndpointFailed:
        status = response.status_code
        if response.has_redirect_location:
            place = one_line(response.headers["location"]).removesuffix(path)
            return EndpointFailed(f"{self._url} is elsewhere: give its address as {place}")
        if status in (401, 403):
            if self._key:
                return EndpointFailed(f"{self._url} refuses this key: give another with --api-key or OPENAI_API_KEY")
            return EndpointFailed(f"{self._url} asks for a key: give it with --api-key or OPENAI_API_KEY")
        try:
            said = event_error(orjson.loads(body))
        except (ValueError, AttributeError):
            said = None
        if status == 404 and said is None:
            return self._no_openai(f"has no {path}", NAME_IT if path == MODELS else "")
        if status == 429:
            return EndpointFailed(f"{self._url} lets no more in (429): ask for fewer --streams, or raise its limits")
        return EndpointFailed(f"{self._url}{path} answered {status}: {one_line(said or body.decode(errors='replace'))}")

    def _no_openai(self, why: str, otherwise: str = "") -> EndpointFailed:
        address = "give its address as http://HOST:PORT or https://HOST/…/v1"
        return EndpointFailed(f"{self._url} is no OpenAI endpoint, it {why}: {otherwise}{address}")


def request_body(model: str, tokens: int, **asked: Any) -> dict[str, Any]:
    """For so many of the likeliest tokens as a stream; `asked` is a `prompt` or `messages`, and what belongs to it."""
    return {
        "model": model,
        **asked,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def one_line(text: str) -> str:
    """In one line, as long as people read, and nothing that a terminal would obey."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:LONGEST_TOLD]
