"""Asks an OpenAI endpoint as its user would; whatever it does instead of answering is told in one line."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from chorus.bench.figures import Answer
from chorus.bench.stream import Chunk, Event, Lines, NoEvents, Reading, event_error, event_of, read
from chorus.errors import ChorusError

CONNECT_SECONDS = 10.0
ASK_SECONDS = 30.0
MODELS = "/v1/models"
CHAT = "/v1/chat/completions"
KEPT_SECONDS = 2.0
"""Less than any server keeps an idle connection: one that is closed just as it is used would be an error."""
LONGEST_TOLD = 300
_MOST_TOLD_BYTES = 64 << 10
_MOST_ANSWER_BYTES = 64 << 20
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


@dataclass(frozen=True)
class Remedies:
    """What the command that asks calls the things which help."""

    name_it: str = "--model"
    """How a model is named."""
    late: str = "ask for less with --tokens or --prompt-tokens, or wait longer with --timeout"
    crowded: str = "ask for fewer --streams, or raise its limits"


class Client:
    """`async with Client(endpoint, 8, 600) as client: await client.answer(…)`"""

    def __init__(self, endpoint: Endpoint, most_streams: int, seconds: float, remedies: Remedies | None = None) -> None:
        self._remedies = remedies or Remedies()
        self._url = endpoint.url
        self._key = endpoint.key
        self._seconds = seconds
        try:
            self._http = httpx.AsyncClient(
                headers={"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {},
                verify=endpoint.trusted,
                trust_env=endpoint.through_proxy,
                timeout=httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS)),
                limits=httpx.Limits(max_connections=most_streams, keepalive_expiry=KEPT_SECONDS),
            )
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            # Such as a proxy of the environment that speaks SOCKS, for which httpx needs another package.
            raise EndpointFailed(f"{self._url} cannot be asked: {one_line(str(error))}") from None

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def models(self) -> list[dict[str, Any]]:
        """The models that are served there, each with what the server says of it, its id at least."""
        chunks = await self._chunks("GET", MODELS, None, _MOST_LIST_BYTES, min(self._seconds, ASK_SECONDS))
        try:
            listed = orjson.loads(b"".join(data for _, data in chunks))["data"]
            return [{**entry, "id": str(entry["id"])} for entry in listed]
        except (ValueError, KeyError, TypeError):
            raise self._no_openai("tells no models", self._naming) from None

    async def only_model(self) -> str:
        """The one model that is served there."""
        names = [entry["id"] for entry in await self.models()]
        if len(names) == 1:
            return names[0]
        named = self._remedies.name_it
        if not names:
            raise EndpointFailed(f"{self._url} serves no model: load one, or say which with {named}")
        shown = one_line(", ".join(names))
        raise EndpointFailed(f"{self._url} serves {len(names)} models, say which with {named}: {shown}")

    @property
    def _naming(self) -> str:
        return f"say which model with {self._remedies.name_it}, or "

    async def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a chat in one piece, as the server gives it."""
        chunks = await self._chunks("POST", CHAT, body, _MOST_ANSWER_BYTES, self._seconds)
        try:
            found = orjson.loads(b"".join(data for _, data in chunks))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._no_openai("did not answer with an object")
        return found

    async def events(self, body: dict[str, Any]) -> AsyncIterator[tuple[float, Event]]:
        """The answer to a chat as it comes; whoever closes this lets go of the request. The server may be silent for as
        long as was given between two pieces; all of it may take any time.
        """
        size, whole, begun = 0, Lines(), False
        async with self._open("POST", CHAT, body, None) as response:
            async for data in response.aiter_bytes():
                size += len(data)
                if size > _MOST_ANSWER_BYTES:
                    raise self._no_openai("sends more than anybody asks for")
                for when, line in whole.push((time.perf_counter(), data)):
                    if event := self._event(line, begun):
                        begun = True
                        yield when, event
        for when, line in whole.rest():
            if event := self._event(line, begun):
                yield when, event

    def _event(self, line: bytes, begun: bool) -> Event | None:
        try:
            event = event_of(line)
        except NoEvents:
            raise self.ended_early() if begun else self._no_events() from None
        if event and event.data and (error := event_error(event.data)):
            raise self._in_the_middle(error)
        return event

    def ended_early(self) -> EndpointFailed:
        """The error for an answer whose end the server did not tell."""
        return EndpointFailed(f"{self._url} ended the answer early: its log says why")

    def _no_events(self) -> EndpointFailed:
        return self._no_openai("did not answer with a stream of events")

    def _in_the_middle(self, error: str) -> EndpointFailed:
        return EndpointFailed(f"{self._url} failed in mid-stream: {one_line(error)}")

    async def answer(self, body: dict[str, Any], zero: float) -> tuple[Answer, str]:
        """How a request was answered, with moments counted from `zero`, and its text."""
        path = CHAT if "messages" in body else "/v1/completions"
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
            raise self._no_events() from None
        if reading.error:
            raise self._in_the_middle(reading.error)
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
        async with self._open(method, path, body, seconds) as response:
            async for data in response.aiter_bytes():
                chunks.append((time.perf_counter(), data))
                size += len(data)
                if size > limit:
                    raise self._no_openai("sends more than was asked for")
        return chunks

    @contextlib.asynccontextmanager
    async def _open(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float | None
    ) -> AsyncIterator[httpx.Response]:
        """An answer that says yes, to be read inside; what goes wrong meanwhile is told in one line."""
        response: httpx.Response | None = None
        try:
            async with (
                asyncio.timeout(seconds),
                contextlib.aclosing(await self._http.send(self._request(method, path, body), stream=True)) as response,
            ):
                if response.status_code != 200:
                    raise self._refused(path, response, await self._beginning(response))
                yield response
        except (TimeoutError, httpx.ReadTimeout, httpx.WriteTimeout):
            waited = self._seconds if seconds is None else seconds
            raise EndpointFailed(f"{self._url}{path} took longer than {waited:g} s: {self._remedies.late}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            begun = response is not None and response.num_bytes_downloaded > 0
            raise EndpointFailed(self._unanswered(error, begun)) from error

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Request:
        try:
            return self._http.build_request(method, self._url + path, json=body)
        except (ValueError, RecursionError) as error:  # numbers that are not finite, halves of characters, depth
            raise EndpointFailed(f"the request cannot be sent: {one_line(str(error))}") from None

    async def _beginning(self, response: httpx.Response) -> bytes:
        """As much of a refusal as anybody reads."""
        told = b""
        async for data in response.aiter_bytes():
            told += data
            if len(told) > _MOST_TOLD_BYTES:
                raise self._no_openai("sends more than was asked for")
        return told

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
            return self._no_openai(f"has no {path}", self._naming if path == MODELS else "")
        if status == 429:
            return EndpointFailed(f"{self._url} lets no more in (429): {self._remedies.crowded}")
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
