"""Requests as a client makes them, timed where the client stands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.servers import HttpServer, ServerFailed
from chorus.bench.client import request_body
from chorus.bench.stream import event_data, event_text

REQUEST_SECONDS = 600.0
MODEL = "default_model"
"""What upstream's server calls the one that it serves."""
MAX_TRIES, AGAIN_SECONDS = 40, 0.05
"""Upstream's server lets five connections wait to be taken and resets others: whoever was not answered comes again."""
# An answer that ends much earlier than asked measured something else: a model that said it was done.
_SHORTEST_USEFUL = 0.5


@dataclass(frozen=True)
class Answer:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    first_seconds: float
    """Until the first text."""
    total_seconds: float
    text: str = ""

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first one."""
        return (self.completion_tokens - 1) / (self.total_seconds - self.first_seconds)


@dataclass(frozen=True)
class Batch:
    answers: tuple[Answer, ...]
    wall_seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second of all streams together, waiting and prompts included."""
        return sum(answer.completion_tokens for answer in self.answers) / self.wall_seconds

    @property
    def decode_rate(self) -> float:
        """Tokens per second of all streams together, each from its first token on."""
        return sum(answer.decode_rate for answer in self.answers)


def one_stream(server: HttpServer, prompt: str | Sequence[int], tokens: int) -> Answer:
    return many_streams(server, [prompt], tokens).answers[0]


def many_streams(server: HttpServer, prompts: Sequence[str | Sequence[int]], tokens: int) -> Batch:
    """All prompts at once, one stream each."""
    return streams(server, [body(prompt, tokens) for prompt in prompts])


def streams(server: HttpServer, bodies: Sequence[dict[str, Any]]) -> Batch:
    """All requests at once, whatever each asks for besides its text."""
    batch = asyncio.run(_many(server, bodies))
    for answer, sent in zip(batch.answers, bodies, strict=True):
        check_useful(server.name, answer, sent["max_tokens"])
    return batch


def time_to_first_token(server: HttpServer, prompt: str | Sequence[int]) -> Answer:
    """A request for one token: no server can hold its text back, so the total is what we want."""
    return one_stream(server, prompt, 1)


def check_useful(name: str, answer: Answer, tokens: int) -> None:
    if answer.completion_tokens < max(1, tokens * _SHORTEST_USEFUL):
        raise ServerFailed(
            f"{name} ended after {answer.completion_tokens} of {tokens} tokens: choose another prompt seed (--seed)"
        )


async def _many(server: HttpServer, bodies: Sequence[dict[str, Any]]) -> Batch:
    limits = httpx.Limits(max_connections=len(bodies))
    async with httpx.AsyncClient(timeout=REQUEST_SECONDS, trust_env=False, limits=limits) as client:
        begin = time.perf_counter()
        answers = await asyncio.gather(*(one_answer(client, server, sent) for sent in bodies))
        return Batch(tuple(answers), time.perf_counter() - begin)


async def one_answer(client: httpx.AsyncClient, server: HttpServer, sent: dict[str, Any]) -> Answer:
    begin = time.perf_counter()
    first: float | None = None
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    path = "/v1/chat/completions" if "messages" in sent else "/v1/completions"
    async with answering(client, server, path, sent) as response:
        async for data in events(response):
            if piece := event_text(data):
                first = time.perf_counter() - begin if first is None else first
                pieces.append(piece)
            usage = data.get("usage") or usage
    total = time.perf_counter() - begin
    if not usage:
        raise ServerFailed(f"{server.name} ended a stream without usage figures:\n{server.log_tail()}")
    details = usage.get("prompt_tokens_details") or {}
    cached = int(details.get("cached_tokens") or 0)
    first = total if first is None else first
    return Answer(usage["prompt_tokens"], usage["completion_tokens"], cached, first, total, "".join(pieces))


@asynccontextmanager
async def answering(
    client: httpx.AsyncClient, server: HttpServer, path: str, sent: dict[str, Any]
) -> AsyncIterator[httpx.Response]:
    """The beginning of an answer, whose rest can be read; what goes wrong is told with the server's log."""
    answered, tries = False, 0
    while not answered:
        try:
            async with client.stream("POST", server.url + path, json=sent) as response:
                answered = True
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    raise ServerFailed(f"{server.name} answers {response.status_code}: {text[:300]}")
                yield response
        except httpx.HTTPError as error:
            server.check_alive()
            tries += 1
            if answered or tries > MAX_TRIES:
                raise ServerFailed(f"{server.name}: {type(error).__name__} {error}:\n{server.log_tail()}") from error
            await asyncio.sleep(AGAIN_SECONDS)


def body(prompt: str | Sequence[int], tokens: int) -> dict[str, Any]:
    return request_body(MODEL, tokens, prompt=prompt)


def chat_body(messages: Sequence[dict[str, Any]], tokens: int, tools: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return request_body(MODEL, tokens, messages=list(messages), **({"tools": list(tools)} if tools else {}))


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event; comments and the closing mark are left out."""
    async for line in response.aiter_lines():
        if (data := event_data(line)) is not None:
            yield data
