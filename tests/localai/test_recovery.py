"""LocalAI's requests outlive the engine that works on them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from chorus.config.sampling import DefaultSampling
from chorus.config.sections import ApiConfig, RecoveryConfig
from chorus.localai.loading import LoadedModel, Models
from chorus.localai.options import FixedSampling
from chorus.localai.service import BackendService
from chorus.messages.proto import engine_pb2 as pb
from chorus.messages.proto import localai_pb2 as wire
from chorus.serving.engine_link import recovery
from chorus.serving.engine_link.client import EngineClient
from chorus.serving.models.model import Capacity, ServedModel
from chorus.serving.prompt.tokenizer import ServedTokenizer
from tests.api.scripted_engine import DEADLINE, Died, Run, ScriptedEngine, play, say_until_cancelled
from tests.support.sockets import short
from tests.support.tiny_tokenizer import write_tiny_tokenizer

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOOLS = json.dumps([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}])
PHASES: tuple[str | int, ...] = ("accept", 0, 4, "finish")


class Aborted(Exception):
    pass


class Context:
    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(code, details)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ServedTokenizer:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_tokenizer(folder, 512)
    return ServedTokenizer.load(folder)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedEngine]:
    monkeypatch.setattr(recovery, "LOOK_SECONDS", 0.01)
    engine = ScriptedEngine(short(tmp_path) / "engine.sock", 512, context_length=1000)
    yield engine
    engine.stop()


def with_backend(
    engine: ScriptedEngine,
    tokenizer: ServedTokenizer,
    act: Callable[[BackendService], Awaitable[None]],
    patience: float = DEADLINE,
) -> None:
    async def run() -> None:
        client = EngineClient(engine.address, recovery=RecoveryConfig(patience_seconds=patience))
        limits, size = ApiConfig(), Capacity(1000, 512)

        async def capacity() -> Capacity:
            return size

        plan = SimpleNamespace(
            identity="tiny",
            settings=SimpleNamespace(api=limits, sampling=DefaultSampling()),
            sampling=FixedSampling(),
            special_tokens={},
            embeddings=True,
        )
        model = ServedModel(tokenizer, limits, client, capacity, "hermes")
        loaded = LoadedModel(cast(Any, plan), Path("none"), model, cast(Any, client), size)
        models = SimpleNamespace(current=loaded, loading=False, failure=None)
        try:
            async with asyncio.timeout(2 * DEADLINE):
                await client.describe(DEADLINE)
                await act(BackendService(cast(Models, models)))
            assert client.open_requests == 0
        finally:
            await client.close()

    asyncio.run(run())


async def told(backend: BackendService, request: wire.PredictOptions, stream: bool) -> list[bytes]:
    """What LocalAI is told, less the times."""
    context = cast(grpc.aio.ServicerContext, Context())
    if stream:
        replies = [reply async for reply in backend.PredictStream(request, context)]
    else:
        replies = [await backend.Predict(request, context)]
    for reply in replies:
        reply.timing_prompt_processing = reply.timing_token_generation = 0
        for delta in reply.chat_deltas:
            for call in delta.tool_calls:
                call.id = call.id and "id"
    return [reply.SerializeToString(deterministic=True) for reply in replies]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (wire.PredictOptions(Prompt="Once", Logprobs=1, TopLogprobs=2, StopPrompts=["end"]), "It rains, the end is"),
        (
            wire.PredictOptions(
                Messages=[wire.Message(role="user", content="Hi")], UseTokenizerTemplate=True, Tools=TOOLS
            ),
            f"See: {CALL}",
        ),
    ],
)
def test_an_answer_is_the_same_whatever_engines_are_lost(
    engine: ScriptedEngine, tokenizer: ServedTokenizer, request_: wire.PredictOptions, text: str, stream: bool
) -> None:
    tokens, left = tokenizer.encode(text, special=False), list(PHASES)

    def dies(run: Run, phase: str | int) -> None:
        if phase in left:
            left.remove(phase)
            engine.die()
            raise Died

    async def act(backend: BackendService) -> None:
        engine.default = play(tokens, cached=1)
        expected = await told(backend, request_, stream)
        engine.default = play(tokens, cached=1, meanwhile=dies)
        assert await told(backend, request_, stream) == expected
        # A stop string ends an answer before the engine does.
        assert left in ([], ["finish"])

    with_backend(engine, tokenizer, act)


def test_an_embedding_waits_for_the_next_engine(engine: ScriptedEngine, tokenizer: ServedTokenizer) -> None:
    async def act(backend: BackendService) -> None:
        engine.embeddings_lost = 1
        result = await backend.Embedding(wire.PredictOptions(Embeddings="hello"), cast(Any, Context()))
        assert result.dim == 3

    with_backend(engine, tokenizer, act)


def test_an_engine_that_does_not_come_back_is_unavailable(engine: ScriptedEngine, tokenizer: ServedTokenizer) -> None:
    async def act(backend: BackendService) -> None:
        def dies(run: Run) -> None:
            run.accept()
            run.send(70)
            engine.description.state = pb.LOADING
            engine.die()

        engine.default = dies
        for stream in (False, True):
            with pytest.raises(Aborted, match="nothing has moved") as caught:
                await told(backend, wire.PredictOptions(Prompt="Once"), stream)
            assert caught.value.args[0] is grpc.StatusCode.UNAVAILABLE

    with_backend(engine, tokenizer, act, patience=0.2)


def test_a_client_that_leaves_during_the_wait_leaves_nothing(
    engine: ScriptedEngine, tokenizer: ServedTokenizer
) -> None:
    async def act(backend: BackendService) -> None:
        engine.default = say_until_cancelled(tokenizer.encode("ab", special=False))
        waiting = asyncio.create_task(told(backend, wire.PredictOptions(Prompt="Once"), stream=True))
        await asyncio.to_thread(engine.wait_for_run)
        engine.description.state = pb.LOADING
        engine.die()
        client = cast(Any, backend)._models.current.model.client
        while not client.recovery.waits:
            await asyncio.sleep(0.005)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with_backend(engine, tokenizer, act)
