from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from chorus.messages.engine import Progress, Request, Sampling
from chorus.messages.proto import engine_pb2 as pb
from chorus.serving.engine_link.client import EngineClient
from chorus.serving.errors import ContextExceeded, EngineLost, EngineOverloaded, RequestFailed, RequestRejected
from chorus.serving.generation import AnswerDelta, AnswerEnd, Choice, Generation
from chorus.serving.prepare import answer_budget
from chorus.text.parsers.toolkit.pieces import Content
from chorus.text.stops import Stops
from chorus.text.tokenizer import Tokenizer
from tests.api.scripted_engine import DEADLINE, Run, ScriptedEngine, refuse, say, say_until_cancelled
from tests.support.sockets import short

REQUEST = Request(id="", prompt=(1, 2, 3), max_tokens=100, sampling=Sampling(seed=1), stop_tokens=frozenset({2}))


def with_client(
    engine: ScriptedEngine, act: Callable[[EngineClient], Awaitable[None]], patience: float = DEADLINE
) -> None:
    async def run() -> None:
        client = EngineClient(engine.address, connect_timeout=patience)
        try:
            async with asyncio.timeout(2 * DEADLINE):
                await act(client)
            assert client.open_requests == 0
        finally:
            await client.close()

    asyncio.run(run())


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(short(tmp_path) / "engine.sock", 512)
    yield engine
    engine.stop()


async def tokens_of(client: EngineClient, request: Request = REQUEST) -> list[int]:
    return [token async for progress in client.generate(request) for token in progress.tokens]


async def cancelled(run: Run) -> None:
    await asyncio.to_thread(run.wait_cancelled)


def test_many_requests_share_one_session(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.default = lambda run: say([run.submit.max_tokens + number for number in range(50)])(run)
        requests = [Request("", (1,), 1000 * number, sampling=Sampling(seed=1)) for number in range(1, 17)]
        answers = await asyncio.gather(*(tokens_of(client, request) for request in requests))
        for request, answer in zip(requests, answers, strict=True):
            assert answer == [request.max_tokens + number for number in range(50)]

    with_client(engine, act)
    assert engine.sessions == 1


def test_progress_carries_the_finish_and_the_timing_last(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(say([7, 8], cached=1))
        progress = [item async for item in client.generate(REQUEST)]
        assert progress[:2] == [Progress("1:", (7,)), Progress("1:", (8,))]
        assert progress[2].finish == "stop"
        assert progress[2].timing is not None
        assert (progress[2].timing.generated_tokens, progress[2].timing.cached_tokens) == (3, 1)

    with_client(engine, act)


def test_closing_a_stream_early_cancels_it(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(say_until_cancelled([7]))
        stream = client.generate(REQUEST)
        assert (await anext(stream)).tokens == (7,)
        await stream.aclose()
        assert client.open_requests == 0
        await cancelled(engine.wait_for_run())
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    with_client(engine, act)


def test_cancelling_the_task_that_waits_cancels_the_request(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(say_until_cancelled([]))
        task = asyncio.create_task(tokens_of(client))
        run = await asyncio.to_thread(engine.wait_for_run)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.open_requests == 0
        await cancelled(run)

    with_client(engine, act)


def test_a_stream_that_was_never_read_submits_nothing(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        await client.generate(REQUEST).aclose()
        engine.next(say([7]))
        assert await tokens_of(client) == [7]
        assert len(engine.runs) == 1

    with_client(engine, act)


@pytest.mark.parametrize(
    ("finish", "error"),
    [
        (pb.REJECTED, RequestRejected),
        (pb.FAILED, RequestFailed),
        (pb.OVERLOADED, EngineOverloaded),
        (pb.CANCELLED, EngineLost),
    ],
)
def test_an_outcome_that_is_no_answer_is_raised(
    engine: ScriptedEngine, finish: pb.Finish, error: type[Exception]
) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(refuse(finish, "the reason"))
        with pytest.raises(error, match="the reason"):
            await tokens_of(client)

    with_client(engine, act)


def test_a_request_waits_for_an_engine_that_is_coming_up(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(say([7]))
        engine.stop()
        task = asyncio.create_task(tokens_of(client))
        with pytest.raises(EngineLost):
            await client.describe(DEADLINE)
        engine.start()
        assert await task == [7]

    with_client(engine, act, patience=DEADLINE)


def test_an_engine_that_stays_away_is_given_up_after_the_deadline(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.stop()
        with pytest.raises(EngineLost, match=r"could not be reached within 0\.3 s"):
            await tokens_of(client)

    with_client(engine, act, patience=0.3)


def test_requests_that_wait_for_the_engine_share_one_deadline(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.stop()
        # One after the other they would wait for longer than this test may take.
        outcomes = await asyncio.gather(*(tokens_of(client) for _ in range(100)), return_exceptions=True)
        assert all(isinstance(outcome, EngineLost) for outcome in outcomes)

    with_client(engine, act, patience=1.0)


def test_describe_answers_beside_the_session(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        description = await client.describe(timeout=DEADLINE)
        assert (description.state, description.vocabulary) == (pb.READY, 512)

    with_client(engine, act)


def test_an_engine_that_is_slow_to_greet_is_waited_for(engine: ScriptedEngine, tmp_path: Path) -> None:
    """On a busy machine it may take a while until an engine answers a connection that its system took."""
    engine.start()
    late = short(tmp_path) / "late.sock"

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def greet_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        behind = await asyncio.open_unix_connection(engine.address.removeprefix("unix:"))
        await asyncio.gather(relay(reader, behind[1]), relay(behind[0], writer))

    async def asked() -> pb.Description:
        server = await asyncio.start_unix_server(greet_late, late)
        client = EngineClient(f"unix:{late}")
        try:
            return await client.describe(DEADLINE)
        finally:
            await client.close()
            server.close()

    assert asyncio.run(asked()).state == pb.READY


def test_closing_the_client_fails_what_is_open(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(say_until_cancelled([]))
        task = asyncio.create_task(tokens_of(client))
        await asyncio.to_thread(engine.wait_for_run)
        await client.close()
        with pytest.raises(EngineLost):
            await task

    with_client(engine, act)


def generation(client: EngineClient, tokenizer: Tokenizer, *stops: str) -> Generation:
    request = Request(id="", prompt=(5, 6), max_tokens=50, sampling=Sampling(seed=1))
    return Generation(client, tokenizer, [Choice(request)], stops=Stops(stops))


def text_of(items: list[AnswerDelta | AnswerEnd]) -> str:
    pieces = [piece for item in items if isinstance(item, AnswerDelta) for piece in item.pieces]
    return "".join(piece.text for piece in pieces if isinstance(piece, Content))


def test_tokens_after_a_stop_string_in_the_same_event_are_neither_shown_nor_counted(
    engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    letters = [tokenizer.encode(letter, special=False)[0] for letter in "abcdef"]

    def all_at_once(run: Run) -> None:
        run.send(*letters)
        say_until_cancelled([])(run)

    async def act(client: EngineClient) -> None:
        engine.next(all_at_once)
        delta, finished = [item async for item in generation(client, tokenizer, "cd")]
        assert delta == AnswerDelta(0, (Content("ab"),), tuple(letters[:4]))
        assert isinstance(finished, AnswerEnd)
        assert (finished.reason, finished.usage.completion_tokens) == ("stop", 4)

    with_client(engine, act)


def test_a_stop_string_settled_only_by_the_end_of_the_text_is_found(
    engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(say([tokenizer.encode(letter, special=False)[0] for letter in "xab"], pb.LENGTH))
        items = [item async for item in generation(client, tokenizer, "ab", "abc")]
        assert text_of(items) == "x"
        assert isinstance(items[-1], AnswerEnd)
        assert items[-1].reason == "stop"

    with_client(engine, act)


def test_an_engine_that_goes_silent_after_a_stop_string_does_not_take_the_answer_with_it(
    engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    never = threading.Event()

    def goes_silent(run: Run) -> None:
        run.send(*tokenizer.encode("abc", special=False))
        run.wait_cancelled()
        never.wait(DEADLINE)

    async def act(client: EngineClient) -> None:
        engine.next(goes_silent)
        items = [item async for item in generation(client, tokenizer, "c")]
        assert isinstance(items[-1], AnswerEnd)
        assert items[-1].reason == "stop"
        assert items[-1].usage.completion_tokens > 0

    with_client(engine, act)
    never.set()


def test_closing_a_generation_early_cancels_it(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(say_until_cancelled([70]))
        begun = generation(client, tokenizer)
        await anext(begun)
        await begun.aclose()
        assert client.open_requests == 0
        await cancelled(engine.wait_for_run())

    with_client(engine, act)


@pytest.mark.parametrize(
    ("asked", "default", "budget"),
    [(None, None, 60), (None, 10, 10), (None, 100, 60), (60, None, 60), (5, 10, 5)],
)
def test_the_answer_gets_what_was_asked_for_or_what_is_left(
    asked: int | None, default: int | None, budget: int
) -> None:
    assert answer_budget(40, asked, default, 100) == budget


@pytest.mark.parametrize(("prompt", "asked"), [(100, None), (101, None), (100, 1), (40, 61)])
def test_what_does_not_fit_the_context_is_refused(prompt: int, asked: int | None) -> None:
    with pytest.raises(ContextExceeded) as caught:
        answer_budget(prompt, asked, None, 100)
    assert str(prompt) in str(caught.value)
    assert "100" in str(caught.value)
