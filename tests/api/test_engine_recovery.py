"""A request outlives the engine that works on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chorus.config.sections import RecoveryConfig
from chorus.messages.engine import Finish, Pooling, Progress, Request, Sampling, Timing
from chorus.messages.proto import engine_pb2 as pb
from chorus.platform import faults
from chorus.serving.engine_link import client as engine_client
from chorus.serving.engine_link import recovery
from chorus.serving.engine_link.client import EngineClient
from chorus.serving.errors import EngineLost, RequestFailed, RequestRejected
from chorus.serving.generation import AnswerEnd, Choice, Generation
from chorus.text.stops import Stops
from chorus.text.tokenizer import Tokenizer
from tests.api.scripted_engine import DEADLINE, Died, Run, ScriptedEngine, play, refuse, say, say_until_cancelled
from tests.support.sockets import short

TOKENS = (7, 8, 9, 10)
REQUEST = Request(id="", prompt=(1, 2, 3), max_tokens=100, sampling=Sampling(seed=1), stop_tokens=frozenset({2}))


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedEngine]:
    monkeypatch.setattr(recovery, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(engine_client, "_QUIET_SECONDS", 0.01)
    engine = ScriptedEngine(short(tmp_path) / "engine.sock", 512)
    yield engine
    engine.stop()


def with_client(
    engine: ScriptedEngine, act: Callable[[EngineClient], Awaitable[None]], patience: float = DEADLINE
) -> None:
    """A client that has seen its engine ready; in the end it has nothing open and nobody looks out for it."""

    async def run() -> None:
        client = EngineClient(engine.address, recovery=RecoveryConfig(patience_seconds=patience))
        try:
            async with asyncio.timeout(2 * DEADLINE):
                await client.describe(DEADLINE)
                await act(client)
                assert client.open_requests == 0
                await until(lambda: not any(task.get_name() == "engine-recovery" for task in asyncio.all_tasks()))
        finally:
            await client.close()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def items_of(client: EngineClient, request: Request = REQUEST) -> list[Progress]:
    return [item async for item in client.generate(request)]


def tokens_in(items: list[Progress]) -> tuple[int, ...]:
    return tuple(token for item in items for token in item.tokens)


class Deaths:
    """The engine dies once at each of these phases."""

    def __init__(self, engine: ScriptedEngine, *phases: str | int, cause: str = "outside") -> None:
        self._engine = engine
        self.left = list(phases)
        self._cause = cause

    def __call__(self, run: Run, phase: str | int) -> None:
        if phase in self.left:
            self.left.remove(phase)
            self._engine.die(self._cause)
            raise Died


@pytest.mark.parametrize("phase", ["accept", 0, 1, 3, "finish"])
def test_the_next_engine_goes_on_where_the_last_one_was(engine: ScriptedEngine, phase: str | int) -> None:
    async def act(client: EngineClient) -> None:
        engine.default = play(TOKENS, meanwhile=Deaths(engine, phase))
        items = await items_of(client)
        assert tokens_in(items) == TOKENS
        assert items[-1].finish is Finish.STOP
        assert items[-1].timing
        assert items[-1].timing.generated_tokens == 5
        first, second = (run.submit for run in engine.runs)
        delivered = {"accept": 0, "finish": len(TOKENS)}.get(phase, phase)  # type: ignore[arg-type]
        assert tuple(second.answered) == TOKENS[:delivered]
        # One that was never taken is a new one to the next engine, too.
        assert second.resumed == (phase != "accept")
        assert (second.prompt, second.sampling, second.id) == (first.prompt, first.sampling, first.id)

    with_client(engine, act)


def test_a_request_outlives_many_engines_and_many_requests_outlive_one(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.default = play(TOKENS, meanwhile=Deaths(engine, "accept", 0, 0, 1, 2, 2, 3, "finish"))
        answers = await asyncio.gather(*(items_of(client) for _ in range(4)))
        assert [tokens_in(items) for items in answers] == [TOKENS] * 4

    with_client(engine, act)


def test_an_engine_that_cancels_all_on_its_way_out_has_lost_nothing(engine: ScriptedEngine) -> None:
    def stops(run: Run) -> None:
        run.accept()
        run.send(7)
        run.finish(pb.CANCELLED, error="the engine was stopped")
        engine.die()

    async def act(client: EngineClient) -> None:
        engine.next(stops)
        engine.default = play(TOKENS)
        assert tokens_in(await items_of(client)) == TOKENS

    with_client(engine, act)


def test_an_engine_that_is_away_for_a_while_is_waited_for(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(say_until_cancelled([7]))
        engine.default = play(TOKENS)
        stream = client.generate(REQUEST)
        assert (await anext(stream)).tokens == (7,)
        engine.description.state = pb.LOADING
        await asyncio.to_thread(engine.stop)
        rest = asyncio.create_task(items_of_stream(stream))
        new = asyncio.create_task(items_of(client))
        await until(lambda: client.open_requests == 2)
        engine.start()
        await until(lambda: engine.sessions == 1)
        engine.description.state = pb.READY
        assert tokens_in(await rest) == TOKENS[1:]
        assert tokens_in(await new) == TOKENS

    with_client(engine, act)


async def items_of_stream(stream: engine_client.EngineStream) -> list[Progress]:
    return [item async for item in stream]


def test_an_answer_that_was_complete_is_not_asked_for_again(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.default = play(TOKENS, meanwhile=Deaths(engine, "finish"))
        items = await items_of(client, replace(REQUEST, max_tokens=len(TOKENS)))
        assert tokens_in(items) == TOKENS
        assert items[-1].finish is Finish.LENGTH
        assert items[-1].timing
        assert items[-1].timing.generated_tokens == len(TOKENS)
        assert len(engine.runs) == 1

    with_client(engine, act)


def test_a_cancel_ends_a_request_whose_engine_is_lost(engine: ScriptedEngine) -> None:
    """Before the loss, or while the next engine is waited for."""

    async def act(client: EngineClient) -> None:
        def dies_of_a_cancel(run: Run) -> None:
            run.accept()
            run.send(7, queue_seconds=0.5)
            run.wait_cancelled()
            engine.die()

        engine.next(dies_of_a_cancel, say_until_cancelled([7]))
        stream = client.generate(REQUEST)
        await anext(stream)
        stream.cancel()
        ended = await anext(stream)
        assert ended.finish is Finish.CANCELLED
        assert ended.timing
        assert (ended.timing.queue_seconds, ended.timing.generated_tokens) == (0.5, 1)

        stream = client.generate(REQUEST)
        await anext(stream)
        engine.description.state = pb.LOADING
        engine.die()
        waiting = asyncio.ensure_future(anext(stream))
        await until(lambda: client.recovery.waits)
        stream.cancel()
        assert (await waiting).finish is Finish.CANCELLED
        assert len(engine.runs) == 2

    with_client(engine, act)


def test_leaving_while_the_next_engine_is_waited_for_leaves_nothing(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.default = say_until_cancelled([7])
        streams = [client.generate(REQUEST) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        engine.description.state = pb.LOADING
        engine.die()
        waiting = [asyncio.create_task(items_of_stream(stream)) for stream in streams]
        await until(lambda: client.recovery.waits)
        waiting.append(asyncio.create_task(items_of(client)))
        waiting.append(asyncio.create_task(client.generate(REQUEST).accepted()))
        await until(lambda: client.open_requests == 5)
        for task in waiting:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*waiting, return_exceptions=True)
        )
        assert client.open_requests == 0
        assert len(engine.runs) == 3
        engine.description.state = pb.READY
        engine.default = say([9])
        assert tokens_in(await items_of(client)) == (9,)

    with_client(engine, act)


def test_patience_ends_with_what_was_lost_and_how_long_was_waited(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(say_until_cancelled([7]))
        stream = client.generate(REQUEST)
        await anext(stream)
        engine.description.state, engine.description.detail = pb.LOADING, "loading tiny"
        engine.die()
        expected = (
            r"lost \d+ s ago \(.*dropped.*\) and nothing has moved for 0\.3 s: it is loading \(100%\): loading tiny"
        )
        with pytest.raises(EngineLost, match=expected):
            await anext(stream)
        # Whoever comes before anything has moved is not left waiting.
        with pytest.raises(EngineLost, match="nothing has moved"):
            await items_of(client)
        with pytest.raises(EngineLost, match="nothing has moved"):
            await client.embed((1, 2), Pooling.MEAN, DEADLINE)
        engine.description.state, engine.description.detail = pb.READY, ""
        engine.default = say([9])
        assert tokens_in(await items_of(client)) == (9,)

    with_client(engine, act, patience=0.3)


def test_an_engine_that_replaces_a_rank_is_given_the_same_patience(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(say_until_cancelled([7]))
        stream = client.generate(REQUEST)
        await anext(stream)
        engine.description.state = pb.RECOVERING
        engine.before_describing = move
        with pytest.raises(EngineLost, match=r"nothing has moved for 0\.2 s: it is recovering"):
            await anext(stream)
        # For longer than that it did move.
        assert engine.description.step == 40
        engine.wait_for_run().wait_cancelled()

    def move() -> None:
        engine.description.step = min(engine.description.step + 1, 40)

    with_client(engine, act, patience=0.2)


def test_an_engine_that_was_never_ready_is_not_waited_for(engine: ScriptedEngine) -> None:
    async def act() -> None:
        client = EngineClient(engine.address)
        engine.description.state = pb.LOADING
        engine.next(lambda run: engine.drop_sessions())
        await client.describe(DEADLINE)
        with pytest.raises(EngineLost, match="dropped"):
            await items_of(client)
        await client.close()

    asyncio.run(act())


def test_a_new_front_end_waits_for_an_engine_that_starts_again(engine: ScriptedEngine) -> None:
    """It has served others: how it was lost tells so."""
    engine.description.state, engine.description.loss.cause = pb.LOADING, "outside"

    async def act(client: EngineClient) -> None:
        engine.next(play(TOKENS))
        waiting = asyncio.create_task(client.recovery.engine())
        asking = asyncio.create_task(items_of(client))
        await asyncio.sleep(0)
        assert client.recovery.waits
        engine.description.state = pb.READY
        await waiting
        assert tokens_in(await asking) == TOKENS

    with_client(engine, act)


@pytest.mark.parametrize("takes_over", [True, False])
def test_a_front_end_in_the_place_of_a_lost_one_waits_for_an_engine_that_is_away_with_it(
    engine: ScriptedEngine, takes_over: bool
) -> None:
    """Both were lost at once; the first one of all tells at once that nobody is there."""

    async def act() -> None:
        await asyncio.to_thread(engine.stop)
        client = EngineClient(engine.address, takes_over=takes_over)
        with pytest.raises(EngineLost, match="does not answer"):
            await client.describe(DEADLINE)
        assert client.recovery.waits == takes_over
        if takes_over:
            asking = asyncio.create_task(items_of(client))
            engine.next(play(TOKENS))
            engine.start()
            assert tokens_in(await asking) == TOKENS
        await client.close()

    asyncio.run(act())


def test_a_new_front_end_takes_requests_for_an_engine_that_replaces_a_rank(engine: ScriptedEngine) -> None:
    engine.description.state = pb.RECOVERING

    async def act(client: EngineClient) -> None:
        engine.next(play(TOKENS))
        assert not client.recovery.waits
        assert tokens_in(await items_of(client)) == TOKENS

    with_client(engine, act)


def test_a_refusal_by_the_next_engine_is_the_end(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(play(TOKENS, meanwhile=Deaths(engine, 2)), refuse(pb.REJECTED, "exceeds the context"))
        with pytest.raises(RequestRejected, match="exceeds the context"):
            await items_of(client)

    with_client(engine, act)


def test_closing_the_client_ends_whoever_waits(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.next(say_until_cancelled([7]))
        stream = client.generate(REQUEST)
        await anext(stream)
        engine.description.state = pb.LOADING
        engine.die()
        waiting = asyncio.create_task(items_of_stream(stream))
        await until(lambda: client.recovery.waits)
        await client.close("the model was freed")
        with pytest.raises(EngineLost, match="the model was freed"):
            await waiting

    with_client(engine, act)


def test_an_embedding_is_asked_for_again(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.embeddings_lost = 2
        assert await client.embed((1, 2), Pooling.MEAN, DEADLINE) == (3.0, 4.0, 2.0)
        assert len(engine.embedded) == 3

    with_client(engine, act)


def test_times_are_those_that_the_client_has_seen(engine: ScriptedEngine) -> None:
    """Queue and prompt as the first engine told them, the rest by the front end's clock; cached is what all found."""

    def first(run: Run) -> None:
        run.accept()
        run.send(7, queue_seconds=3.0, prompt_seconds=5.0, prompt_tokens=3, cached_tokens=2)
        engine.die()

    def second(run: Run) -> None:
        run.accept()
        run.send(8, queue_seconds=0.0, prompt_seconds=1.0, prompt_tokens=3, cached_tokens=1)
        engine.die()

    async def act(client: EngineClient) -> None:
        engine.next(first, second)
        engine.default = play((7, 8, 9), cached=3)
        timing = (await items_of(client))[-1].timing
        assert timing == Timing(3.0, 5.0, timing.generation_seconds if timing else 0, 3, 1, 4)
        assert timing
        assert timing.generation_seconds > 0.02

    with_client(engine, act)


def test_the_time_until_an_engine_gave_the_first_token_is_time_in_a_queue(engine: ScriptedEngine) -> None:
    async def act(client: EngineClient) -> None:
        engine.default = play((7,), meanwhile=Deaths(engine, 0))
        timing = (await items_of(client))[-1].timing
        assert timing
        assert timing.queue_seconds > 0.26
        assert timing.prompt_seconds == 0.5

    with_client(engine, act)


def test_a_stop_string_across_the_cut_is_found(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    letters = [tokenizer.encode(letter, special=False)[0] for letter in "abcdef"]

    async def act(client: EngineClient) -> None:
        def never_ends(run: Run, phase: str | int) -> None:
            if phase == 3 and not run.submit.answered:
                engine.die()
                raise Died
            if phase == "finish":
                run.wait_cancelled()

        engine.default = play(letters, meanwhile=never_ends)
        request = Request(id="", prompt=(5, 6), max_tokens=50, sampling=Sampling(seed=1))
        end = [item async for item in Generation(client, tokenizer, [Choice(request)], stops=Stops(("cd",)))][-1]
        assert isinstance(end, AnswerEnd)
        assert (end.reason, end.stop_string, end.usage.completion_tokens) == ("stop", "cd", 4)
        assert end.usage.prompt_tokens == 2

    with_client(engine, act)


def test_a_request_that_ends_every_engine_fails_alone_and_is_known_again(engine: ScriptedEngine) -> None:
    poison = replace(REQUEST, prompt=(13,))

    def meanwhile(run: Run, phase: str | int) -> None:
        if tuple(run.submit.prompt) == poison.prompt:
            if phase == 2:
                engine.die("fault", "rank 0 ended with signal SEGV")
                raise Died
        # Beside the poison nobody gets anywhere.
        elif phase == 0 and engine.description.started_at < 2:
            run.cancelled.wait(DEADLINE)
            raise Died

    async def act(client: EngineClient) -> None:
        engine.default = play(TOKENS, meanwhile=meanwhile)
        innocent = [asyncio.create_task(items_of(client)) for _ in range(3)]
        await until(lambda: len(engine.runs) == 3)
        with pytest.raises(RequestFailed, match="this request ended the engine 3 times: rank 0 ended with signal SEGV"):
            await items_of(client, poison)
        for task in innocent:
            assert tokens_in(await task) == TOKENS
        # Once more where the first engine took a token along that nobody had received.
        assert engine.description.started_at in (3, 4)
        runs = len(engine.runs)
        with pytest.raises(RequestFailed, match="ended the engine 3 times"):
            await items_of(client, replace(poison, sampling=Sampling(seed=99)))
        assert len(engine.runs) == runs

    with_client(engine, act)


@pytest.mark.parametrize("place", ["request", "event"])
def test_a_fault_on_purpose_in_the_front_end_leaves_nothing(
    engine: ScriptedEngine, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_folder", tmp_path)

    async def act(client: EngineClient) -> None:
        engine.default = play(TOKENS)
        faults.Fault("error", place, faults.FRONT_END).write(tmp_path, "one")
        with pytest.raises(faults.Injected):
            await items_of(client)
        assert tokens_in(await items_of(client)) == TOKENS

    with_client(engine, act)
