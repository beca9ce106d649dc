"""The clients of a server under faults: requests of every protocol, and all that each client saw, with the times."""

from __future__ import annotations

import asyncio
import itertools
import json
import string
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from tests.chaos.plan import TINY

CLIENTS = 6
REQUEST_SECONDS = 150.0
"""Who has no answer by then waits for ever."""
PAUSE_SECONDS = 0.5
LOST_PAUSE_SECONDS = 1.0
PROMPT_TOKENS = (20, 200)
ANSWER_TOKENS = (30, 100)

Body = dict[str, Any]


@dataclass
class Exchange:
    """One request, and what its client saw of the answer."""

    id: str
    kind: str
    path: str
    body: Body = field(repr=False)
    began: float = 0.0
    ended: float = 0.0
    times: list[float] = field(default_factory=list, repr=False)
    """When something of the answer came."""
    text: str = field(default="", repr=False)
    arguments: str = ""
    """Of the function that is called."""
    told_again: str | None = field(default=None, repr=False)
    """The whole text, where the protocol tells it once more at the end."""
    finish: str | None = None
    tokens: int | None = None
    """As the usage says."""
    error: str = ""
    """What the server said went wrong."""
    broken: str = ""
    """How the connection ended before the answer did."""
    again: bool = False
    """Asked before, of a front end that was lost meanwhile."""
    counted: bool = False
    """Among the lost ones of a fault."""
    text_only: bool = False
    """Bytes that are no text are left out in this protocol; elsewhere a sign stands for them."""

    @property
    def complete(self) -> bool:
        return self.finish is not None and not self.error and not self.broken

    @property
    def hangs(self) -> bool:
        return self.broken.startswith("no end")

    def see(self, text: str = "", arguments: str = "") -> None:
        if text or arguments:
            self.times.append(time.time())
        self.text += text
        self.arguments += arguments


class Asker:
    """Draws requests, and asks them: everything but the times follows from the seed."""

    def __init__(self, url: str, model: str, seed: str, first: int = 1) -> None:
        """Requests are numbered from `first`."""
        self.exchanges: list[Exchange] = []
        self._random = Random(f"{seed} requests")
        self._model = model
        self._numbers = itertools.count(first)
        self._http = httpx.AsyncClient(
            base_url=url, timeout=None, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
        )
        self._kinds = itertools.cycle(KINDS)

    def open(self) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if not exchange.ended]

    def draw(self) -> Exchange:
        kind = next(self._kinds)
        path, body = KINDS[kind](self._random, prompt(self._random, self._model))
        body["model"] = "default_model"
        return Exchange(f"chaos-{next(self._numbers)}", kind, path, body)

    async def run(self) -> None:
        """As one client: again and again, until it is cancelled; a request that is under way is brought to its end."""
        while True:
            exchange = self.draw()
            await asyncio.shield(asyncio.ensure_future(self.ask(exchange)))
            await asyncio.sleep(self._random.uniform(0, PAUSE_SECONDS) if exchange.complete else LOST_PAUSE_SECONDS)

    async def ask_again(self, exchange: Exchange) -> Exchange:
        number = next(self._numbers)
        again = Exchange(f"chaos-{number}", exchange.kind, exchange.path, exchange.body, again=True)
        await self.ask(again)
        return again

    async def ask(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        exchange.began = time.time()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._exchange(exchange)
        except TimeoutError:
            exchange.broken = f"no end after {REQUEST_SECONDS:g} s"
        except httpx.HTTPError as error:
            exchange.broken = f"{type(error).__name__}: {error}"
        finally:
            exchange.ended = time.time()
        if not (exchange.complete or exchange.error or exchange.broken):
            exchange.broken = "it ended in order, and without a finish"

    async def close(self) -> None:
        await self._http.aclose()

    async def _exchange(self, exchange: Exchange) -> None:
        headers = {"x-request-id": exchange.id}
        async with self._http.stream("POST", exchange.path, json=exchange.body, headers=headers) as response:
            read = READERS[exchange.path]
            if response.status_code != 200:
                exchange.error = f"{response.status_code}: {(await response.aread()).decode(errors='replace')[:200]}"
            elif exchange.body.get("stream"):
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        read(exchange, json.loads(line[6:]))
            else:
                WHOLE[exchange.path](exchange, json.loads(await response.aread()))


def prompt(random: Random, model: str) -> str:
    """About as many tokens as drawn: a word is one, here and there two."""
    words = TINY_WORDS if model == TINY else REAL_WORDS
    return " ".join(random.choices(words, k=random.randint(*PROMPT_TOKENS) // (2 if model == TINY else 1)))


TINY_WORDS = ["A" + "".join(letters) for letters in itertools.product("abc", string.ascii_lowercase, "xyz")]
REAL_TEXT = """the of and a to in is you that it he was for on are as with his they I at be this have from or one had
by word but what some we can out other were all there when up use your how said an each she which do their time if will
way about many then them write would like so these her long make thing see him two has look more day could go come did
number sound no most people my over know water than call first who may down side been now find"""
REAL_WORDS = REAL_TEXT.split()
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["machine", "voice"]},
        "sizes": {"type": "array", "items": {"enum": [1, 22, 333, 4444]}, "minItems": 4, "maxItems": 8},
        "name": {"type": "string", "minLength": 8, "maxLength": 40},
    },
    "required": ["kind", "sizes", "name"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
TOOL = {"name": "look_up", "parameters": CITY | {"additionalProperties": False}}


def _answer(random: Random, name: str = "max_tokens") -> Body:
    return {name: random.randint(*ANSWER_TOKENS)}


def _drawn(random: Random, seeded: bool = True) -> Body:
    if random.random() < 0.5:
        return {"temperature": 0}
    seed = {"seed": random.randrange(2**31)} if seeded else {}
    return {"temperature": random.choice((0.7, 1.0)), "top_p": random.choice((0.9, 1.0)), **seed}


def _messages(text: str) -> list[Body]:
    return [{"role": "user", "content": text}]


def _chat(random: Random, text: str) -> tuple[str, Body]:
    stream = random.random() < 0.8
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    return CHAT, {"messages": _messages(text), "stream": stream, **usage, **_answer(random), **_drawn(random)}


def _completions(random: Random, text: str) -> tuple[str, Body]:
    return COMPLETIONS, {"prompt": text, "stream": True, "logprobs": 2, **_answer(random), "temperature": 0}


def _penalties(random: Random, text: str) -> tuple[str, Body]:
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.7, "repetition_penalty": 1.1}
    return COMPLETIONS, {"prompt": text, "stream": True, **penalties, **_answer(random), **_drawn(random)}


def _responses(random: Random, text: str) -> tuple[str, Body]:
    stream = random.random() < 0.8
    return RESPONSES, {
        "input": text,
        "stream": stream,
        "store": False,
        **_answer(random, "max_output_tokens"),
        "temperature": random.choice((0, 1.0)),
    }


def _anthropic(random: Random, text: str) -> tuple[str, Body]:
    stream = random.random() < 0.8
    return MESSAGES, {"messages": _messages(text), "stream": stream, **_answer(random), **_drawn(random, seeded=False)}


def _schema(random: Random, text: str) -> tuple[str, Body]:
    path, body = _chat(random, text)
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
    return path, body | {"response_format": form}


def _regex(random: Random, text: str) -> tuple[str, Body]:
    path, body = _penalties(random, text)
    return path, body | {"guided_regex": "([A-Z][a-z]{1,3} ?){20,40}[.]"}


def _tools(random: Random, text: str) -> tuple[str, Body]:
    path, body = _chat(random, text[:200])
    return path, body | {
        "tools": [{"type": "function", "function": TOOL}],
        "tool_choice": "required",
        "max_tokens": 100,
    }


CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"

KINDS: dict[str, Callable[[Random, str], tuple[str, Body]]] = {
    "chat": _chat,
    "completions": _completions,
    "responses": _responses,
    "messages": _anthropic,
    "schema": _schema,
    "penalties": _penalties,
    "tools": _tools,
    "regex": _regex,
}


def _read_chat(exchange: Exchange, event: Body) -> None:
    _told_error(exchange, event)
    for choice in event.get("choices", ()):
        delta = choice["delta"]
        exchange.see(delta.get("content") or "", "".join(_arguments(delta)))
        exchange.finish = choice.get("finish_reason") or exchange.finish
    _usage(exchange, event.get("usage"))


def _arguments(message: Body) -> Iterator[str]:
    return (call["function"].get("arguments") or "" for call in message.get("tool_calls") or ())


def _whole_chat(exchange: Exchange, body: Body) -> None:
    choice = body["choices"][0]
    exchange.see(choice["message"].get("content") or "", "".join(_arguments(choice["message"])))
    exchange.finish = choice["finish_reason"]
    _usage(exchange, body["usage"])


def _read_completions(exchange: Exchange, event: Body) -> None:
    _told_error(exchange, event)
    for choice in event.get("choices", ()):
        exchange.see(choice["text"])
        exchange.finish = choice.get("finish_reason") or exchange.finish


def _read_responses(exchange: Exchange, event: Body) -> None:
    match event["type"]:
        case "response.output_text.delta":
            exchange.see(event["delta"])
        case "response.output_text.done":
            exchange.told_again = event["text"]
        case "response.completed" | "response.incomplete":
            _whole_responses(exchange, event["response"])
        case "error" | "response.failed":
            exchange.error = json.dumps(event)


def _whole_responses(exchange: Exchange, body: Body) -> None:
    texts = [part["text"] for item in body["output"] for part in item.get("content") or () if "text" in part]
    if not exchange.text:
        exchange.see("".join(texts))
    exchange.told_again = "".join(texts)
    exchange.finish = body["status"]
    _usage(exchange, body["usage"], "output_tokens")


def _read_messages(exchange: Exchange, event: Body) -> None:
    match event["type"]:
        case "content_block_delta":
            exchange.see(event["delta"].get("text", ""))
        case "message_delta":
            exchange.finish = event["delta"]["stop_reason"]
            _usage(exchange, event["usage"], "output_tokens")
        case "error":
            exchange.error = json.dumps(event)


def _whole_messages(exchange: Exchange, body: Body) -> None:
    exchange.see("".join(block.get("text", "") for block in body["content"]))
    exchange.finish = body["stop_reason"]
    _usage(exchange, body["usage"], "output_tokens")


def _told_error(exchange: Exchange, event: Body) -> None:
    if "error" in event:
        exchange.error = json.dumps(event["error"])


def _usage(exchange: Exchange, usage: Body | None, name: str = "completion_tokens") -> None:
    if usage:
        exchange.tokens = usage[name]


READERS = {CHAT: _read_chat, COMPLETIONS: _read_completions, RESPONSES: _read_responses, MESSAGES: _read_messages}
WHOLE = {CHAT: _whole_chat, RESPONSES: _whole_responses, MESSAGES: _whole_messages}
