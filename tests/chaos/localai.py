"""The same faults under clients of LocalAI's protocol, whose front end keeps the ranks itself."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import grpc

from tests.chaos.asking import ANSWER_TOKENS, TOOL, Asker, Body, Exchange, prompt
from tests.chaos.served import Served
from tests.localai.process import Backend
from tests.localai.table import METHODS, TYPES, message

FIRST_SEED = 1000


class LocalAI(Served):
    def asker(self, seed: str, first: int = 1) -> LocalAIAsker:
        return LocalAIAsker(self.server.address, self.group.model, seed, first)

    def step(self) -> int:
        """Its protocol does not tell: the next one will do."""
        return 0

    def noticed(self, moment: float) -> float | None:
        # Its records are for people and have whole seconds: what counts is when one is there.
        return next((time.time() for line in self._fresh() if " WARN " in line or " ERROR " in line), None)

    def _fresh(self) -> Iterator[str]:
        with self.server.log_file.open(errors="replace") as log:
            log.seek(self._read_from)
            yield from log

    def _wait_until_ready(self) -> None:
        self.server.__enter__()
        group = self.group
        options = [f"ranks:{group.ranks}", f"parallel:{group.parallel}", f"transport:{group.transport}"]
        self.server.load(self._model, *options)

    def _started(self) -> Any:
        return Backend(self.folder.path / "cwd", environment=self.folder.environment)


class LocalAIAsker(Asker):
    """Requests have no names in this protocol: the seed is one."""

    def __init__(self, address: str, model: str, seed: str, first: int = 1) -> None:
        super().__init__("http://localhost", model, seed, first)
        self._channel = grpc.aio.insecure_channel(address)
        self._seeds = itertools.count(FIRST_SEED + first)
        self._forms = itertools.cycle(FORMS.items())

    def draw(self) -> Exchange:
        seed, (kind, form) = next(self._seeds), next(self._forms)
        body = {
            "Seed": seed,
            "Tokens": self._random.randint(*ANSWER_TOKENS),
            "Temperature": self._random.choice((0.0, 1.0)),
            "IgnoreEOS": True,
            **form(self._random, prompt(self._random, self._model)),
        }
        stream = kind == "tools" or self._random.random() < 0.8
        method = "PredictStream" if stream else "Predict"
        return Exchange(f"seed-{seed}", kind, method, {**body, "stream": stream}, text_only=True)

    async def ask_again(self, exchange: Exchange) -> Exchange:
        raise NotImplementedError("its front end is never lost alone")

    async def close(self) -> None:
        await super().close()
        await self._channel.close()

    async def _exchange(self, exchange: Exchange) -> None:
        asks, answers = METHODS[exchange.path]
        fields = {name: value for name, value in exchange.body.items() if name != "stream"}
        streams = exchange.path == "PredictStream"
        kind = self._channel.unary_stream if streams else self._channel.unary_unary
        call = kind(
            f"/backend.Backend/{exchange.path}",
            request_serializer=TYPES[asks].SerializeToString,
            response_deserializer=TYPES[answers].FromString,
        )
        try:
            if streams:
                async for reply in call(TYPES[asks](**fields)):
                    _see(exchange, reply)
            else:
                _see(exchange, await call(TYPES[asks](**fields)))
        except grpc.aio.AioRpcError as error:
            exchange.error = f"{error.code().name}: {error.details()}"
            return
        exchange.finish = "end"


def _see(exchange: Exchange, reply: Any) -> None:
    deltas = [call.arguments for delta in reply.chat_deltas for call in delta.tool_calls]
    exchange.see(reply.message.decode(), "".join(deltas))


def _plain(random: Random, text: str) -> Body:
    return {"Prompt": text}


def _penalties(random: Random, text: str) -> Body:
    return {"Prompt": text, "Penalty": 1.1, "FrequencyPenalty": 0.7, "PresencePenalty": 0.5, "TopP": 0.9}


def _grammar(random: Random, text: str) -> Body:
    return {"Prompt": text, "Grammar": 'root ::= ([A-Z] [a-z] [a-z]? " "?)+', "IgnoreEOS": False}


def _chat(random: Random, text: str) -> Body:
    return {"Messages": [message("user", text)], "UseTokenizerTemplate": True}


def _tools(random: Random, text: str) -> Body:
    tools = json.dumps([{"type": "function", "function": TOOL}])
    forced = {"Tools": tools, "ToolChoice": "required", "IgnoreEOS": False, "Tokens": ANSWER_TOKENS[1]}
    return {**_chat(random, text), **forced}


FORMS: dict[str, Callable[[Random, str], Body]] = {
    "prompt": _plain,
    "penalties": _penalties,
    "grammar": _grammar,
    "chat": _chat,
    "tools": _tools,
}
