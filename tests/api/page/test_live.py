"""The stream of the page: one picture a second for all who watch, written once for those who may see the same."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from chorus.api.errors import ApiError
from chorus.api.page.live import MOST_ALIKE, Live, Viewer
from chorus.api.page.snapshot import LATELY_SECONDS
from chorus.security.key_rules import key_hash, new_key
from tests.api.conftest import MODEL_ID, ApiProcess, eventually, settings_for
from tests.api.page.frames import next_frame, watching
from tests.api.scripted_engine import DEADLINE, ScriptedEngine, say_until_cancelled
from tests.api.test_finishing import finishing

ANNA, BEN, CLARA, EMIL = (new_key() for _ in range(4))
ADMIN, USER = Viewer("", True, None), Viewer("anna", False, None)


class Counted:
    """Takes numbered pictures."""

    def __init__(self) -> None:
        self.taken = 0
        self.live = Live(self.take, lambda scene, viewer: f"{scene} {viewer.owner}".encode(), tick_seconds=0.02)

    async def take(self) -> int:
        self.taken += 1
        return self.taken


async def see(live: Live[Any], viewer: Viewer, frames: int) -> list[bytes]:
    seen = []
    async with aclosing(live.frames(viewer)) as stream:
        async for frame in stream:
            seen.append(frame)
            if len(seen) == frames:
                break
    return seen


def test_a_picture_is_written_once_for_all_who_may_see_the_same() -> None:
    async def watch() -> None:
        counted = Counted()
        async with asyncio.timeout(DEADLINE):
            seen = await asyncio.gather(*(see(counted.live, viewer, 5) for viewer in [ADMIN] * 20 + [USER] * 20))
        assert all(len(frames) == 5 for frames in seen)
        # Each viewer looks at five or six pictures, and there are two kinds of viewers.
        assert counted.live.written <= 2 * counted.taken
        assert counted.taken <= 8

    asyncio.run(watch())


def test_nothing_is_looked_at_while_nobody_watches() -> None:
    async def watch() -> None:
        counted = Counted()
        async with asyncio.timeout(DEADLINE):
            await see(counted.live, ADMIN, 3)
            taken = counted.taken
            await asyncio.sleep(0.1)
            assert counted.taken == taken
            assert counted.live.watchers == 0
            await see(counted.live, ADMIN, 2)
            assert counted.taken > taken

    asyncio.run(watch())


def test_a_picture_that_cannot_be_taken_is_left_out() -> None:
    async def watch() -> None:
        counted = Counted()
        wanted = counted.take

        async def take() -> int:
            if await wanted() % 2:
                raise RuntimeError("this one breaks")
            return counted.taken

        live = Live(take, lambda scene, viewer: str(scene).encode(), tick_seconds=0.01)
        async with asyncio.timeout(DEADLINE):
            assert await see(live, ADMIN, 3) == [b"2", b"4", b"6"]

    asyncio.run(watch())


def test_nobody_takes_all_places() -> None:
    async def watch() -> None:
        live = Counted().live
        async with asyncio.timeout(DEADLINE):
            streams = [live.frames(USER) for _ in range(MOST_ALIKE)]
            for stream in streams:
                await anext(stream)
            with pytest.raises(ApiError, match="Too many browsers"):
                await anext(live.frames(USER))
            other = live.frames(ADMIN)
            assert await anext(other)
            for stream in (*streams, other):
                await stream.aclose()
        assert live.watchers == 0

    asyncio.run(watch())


@pytest.fixture(scope="module")
def keyed(
    shared_engine: ScriptedEngine, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiProcess]:
    keys = [
        {"id": "anna", "sha256": key_hash(ANNA), "scopes": ["use"]},
        {"id": "ben", "sha256": key_hash(BEN), "scopes": ["use"]},
        {"id": "clara", "sha256": key_hash(CLARA), "scopes": ["admin"]},
        {"id": "emil", "sha256": key_hash(EMIL), "scopes": ["use"], "models": ["another"]},
    ]
    api = ApiProcess(tmp_path_factory.mktemp("keyed"), settings_for(shared_engine, model_path, keys=keys))
    api.wait_until_live()
    yield api
    api.stop()


def test_the_shell_needs_no_key_and_the_data_does(keyed: ApiProcess) -> None:
    browser = {"accept": "text/html"}
    with httpx.Client(base_url=keyed.url, timeout=DEADLINE) as http:
        assert http.get("/", headers=browser).status_code == 200
        assert http.get("/static/app/main.js").status_code == 200
        for path in ("/", "/live", "/requests", "/cluster/status"):
            assert http.get(path).status_code == 401, path
        assert http.get("/live", headers={"authorization": "Bearer wrong"}).status_code == 401
        # What is no part of the page is not let in by its name either.
        assert http.get("/v1/models", headers=browser).status_code == 401


def test_a_key_is_shown_its_own_requests_and_an_administrator_all(keyed: ApiProcess, engine: ScriptedEngine) -> None:
    engine.default = say_until_cancelled([70])
    with asking(keyed, ANNA), asking(keyed, BEN):
        eventually(lambda: len(engine.runs) == 2, "both requests run")

        def owners(key: str) -> list[str]:
            return sorted(request["key"] for request in next_frame(keyed.url, key)["requests"]["running"])

        assert owners(ANNA) == ["anna"]
        assert owners(BEN) == ["ben"]
        assert owners(CLARA) == ["anna", "ben"]
        assert next_frame(keyed.url, CLARA)["admin"] is True
        assert next_frame(keyed.url, ANNA)["admin"] is False
        assert "a secret question" not in json.dumps(next_frame(keyed.url, CLARA))


def test_a_key_for_other_models_hears_of_none(keyed: ApiProcess, engine: ScriptedEngine) -> None:
    shown = next_frame(keyed.url, EMIL)
    assert (shown["models"], shown["clusters"], shown["requests"]["running"]) == ([], [], [])
    assert [model["id"] for model in next_frame(keyed.url, ANNA)["models"]] == [MODEL_ID]


@contextmanager
def asking(api: ApiProcess, key: str) -> Iterator[None]:
    body = {"messages": [{"role": "user", "content": "a secret question"}], "stream": True}
    headers = {"authorization": f"Bearer {key}"}
    with (
        httpx.Client(base_url=api.url, timeout=DEADLINE, headers=headers) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status_code == 200
        yield


def answered(frames: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those pictures in which the engine has answered in time: it is a thread of a busy process."""
    return (frame for frame in frames if frame["clusters"][0]["state"] == "ready")


def test_a_picture_shows_who_holds_what(api: ApiProcess, engine: ScriptedEngine) -> None:
    with watching(api.url) as frames:
        frame = next(answered(frames))
    (cluster,) = frame["clusters"]
    assert (cluster["model"], cluster["state"]) == (MODEL_ID, "ready")
    (rank,) = cluster["ranks"]
    assert (rank["rank"], rank["layers"], rank["state"]) == (0, "0-3", "ready")
    assert set(cluster["rates"]) == {"tokens", "tokens_per_second", "first_token_seconds", "requests"}


def test_an_engine_that_says_nothing_is_shown_so_with_the_ranks_it_had(api: ApiProcess, engine: ScriptedEngine) -> None:
    silent = threading.Event()
    with watching(api.url) as frames:
        assert next(answered(frames))["clusters"][0]["ranks"][0]["state"] == "ready"
        engine.before_describing = lambda: silent.wait(DEADLINE) and None
        try:
            shown = next(frame for frame in frames if frame["clusters"][0]["state"] == "unanswered")
            assert [rank["state"] for rank in shown["clusters"][0]["ranks"]] == ["lost"]
        finally:
            silent.set()
            engine.before_describing = lambda: None
        assert next(frame for frame in frames if frame["clusters"][0]["state"] == "ready")


def test_a_rank_that_was_replaced_between_two_pictures_is_red_in_one_of_them(
    api: ApiProcess, engine: ScriptedEngine
) -> None:
    (rank,) = engine.description.ranks
    before = rank.pid
    with watching(api.url) as frames:
        try:
            # The engine may be silent in just that picture, as long as it likes: then it is replaced once more.
            assert any(is_shown_when_replaced(rank, frames) for _ in range(20))
            states = (frame["clusters"][0]["ranks"][0]["state"] for frame in answered(frames))
            assert [next(states), next(states)] == ["ready", "ready"]
        finally:
            rank.pid = before


def is_shown_when_replaced(rank: Any, frames: Iterator[dict[str, Any]]) -> bool:
    """Whether its loss could be shown, and was: not where the engine was silent just then, for it was red anyway, nor
    where the picture before was too long ago for any news.
    """

    def as_it_is(frame: dict[str, Any]) -> bool:
        shown = frame["clusters"][0]["ranks"][0]
        return (shown["pid"], shown["state"]) == (rank.pid, "ready")

    last = next(frame for frame in answered(frames) if as_it_is(frame))
    rank.pid += 1
    for frame in frames:
        if frame["clusters"][0]["state"] != "ready" or frame["at"] - last["at"] > LATELY_SECONDS - 1:
            return False
        if frame["clusters"][0]["ranks"][0]["state"] != "ready":
            assert frame["clusters"][0]["ranks"][0]["state"] == "lost"
            return True
        assert not as_it_is(frame), "it was replaced, and no picture shows that"
        last = frame
    raise AssertionError("the stream has ended")


def test_a_front_end_that_finishes_waits_for_nobody_who_only_looks_on(
    start_api: Callable[..., ApiProcess], engine: ScriptedEngine
) -> None:
    api = start_api()
    with watching(api.url) as frames:
        next(frames)
        # The old process has ended when this block has: a request might keep it for ten minutes.
        with finishing(api):
            for _ in frames:
                pass


def test_a_server_that_stops_ends_the_stream_at_its_first_word(
    start_api: Callable[..., ApiProcess], engine: ScriptedEngine
) -> None:
    api = start_api(limits={"shutdown_grace_seconds": 500})
    with watching(api.url) as frames:
        next(frames)
        stopping = threading.Thread(target=api.stop)
        stopping.start()
        # Only a stream that is ended by the server ends here; the grace would be longer than any deadline.
        for _ in frames:
            pass
        stopping.join(DEADLINE)
        assert not stopping.is_alive()
