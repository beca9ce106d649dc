from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from chorus.api.openai.responses.disk import DiskStore
from chorus.api.openai.responses.memory import MemoryStore, StoredResponse
from chorus.api.openai.responses.store import CannotForget, ResponseStore

Result = TypeVar("Result")
AnyStore = MemoryStore | DiskStore
MakeStore = Callable[[int, int], AnyStore]
SECRET = "the cat is called Moritz"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "private" / "responses.sqlite"


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, file: Path) -> MakeStore:
    return MemoryStore if request.param == "memory" else lambda entries, size: DiskStore(file, entries, size)


def put(store: AnyStore, name: str, owner: str = "", content: str = "") -> None:
    store.put(name, StoredResponse.of(owner, {"id": name}, [{"content": content}]))


def kept(store: AnyStore, names: str) -> str:
    return "".join(name for name in names if store.get("", name))


def test_the_one_unused_longest_goes_first(make: MakeStore) -> None:
    store = make(2, 10_000)
    put(store, "a")
    put(store, "b")
    assert store.get("", "a")
    put(store, "c")
    assert kept(store, "abc") == "ac"


def test_bytes_are_bounded_too(make: MakeStore) -> None:
    store = make(100, 3000)
    for name in "abcdef":
        put(store, name, content="x" * 1000)
    assert kept(store, "abcdef") == "ef"
    put(store, "s")
    assert kept(store, "efs") == "efs"


def test_nobody_sees_what_another_owner_stored(make: MakeStore) -> None:
    store = make(10, 10_000)
    put(store, "a", owner="alice")
    assert store.get("bob", "a") is None
    assert not store.remove("bob", "a")
    assert store.remove("alice", "a")
    assert store.get("alice", "a") is None


def using(
    use: Callable[[ResponseStore], Coroutine[Any, Any, Result]], file: Path | None, entries: int = 10, size: int = 3000
) -> Result:
    """Of a store that is opened and closed as a front end does it."""

    async def run() -> Result:
        store = ResponseStore(file, entries, size)
        store.open()
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(run())


def storing(name: str, content: str = "") -> Callable[[ResponseStore], Coroutine[Any, Any, None]]:
    return lambda store: store.put("", {"id": name}, [{"content": content}])


def read(name: str) -> Callable[[ResponseStore], Coroutine[Any, Any, StoredResponse | None]]:
    return lambda store: store.get("", name)


def files_of(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(folder.iterdir()))


def test_what_is_larger_than_the_store_drives_out_nobody(file: Path) -> None:
    async def use(store: ResponseStore) -> None:
        await storing("kept", "x" * 1000)(store)
        await storing("huge", "x" * 5000)(store)
        assert await store.get("", "huge") is None
        assert (entry := await store.get("", "kept"))
        assert entry.messages == [{"content": "x" * 1000}]

    using(use, file)
    using(use, None)


def test_the_next_one_finds_it_and_nobody_else_may_look(file: Path) -> None:
    using(storing("a", SECRET), file)
    assert (entry := using(read("a"), file))
    assert entry.messages == [{"content": SECRET}]
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in file.parent.iterdir()} == {0o600}


def test_two_at_once_share_it(file: Path) -> None:
    async def use(old: ResponseStore) -> None:
        new = ResponseStore(file, 10, 3000)
        new.open()
        await asyncio.gather(*(storing(name)(store) for name in "abcd" for store in (old, new)))
        await storing("old")(old)
        await storing("new")(new)
        assert await new.get("", "old")
        assert await old.get("", "new")
        assert await new.remove("", "old")
        assert await old.get("", "old") is None
        await new.close()

    using(use, file, 100)


def test_what_is_deleted_is_in_no_file(file: Path) -> None:
    async def use(store: ResponseStore) -> None:
        await storing("a", SECRET)(store)
        await storing("b")(store)
        assert SECRET.encode() in files_of(file.parent)
        assert await store.remove("", "a")
        assert SECRET.encode() not in files_of(file.parent)
        assert await store.get("", "b")

    using(use, file)


def test_todays_limits_hold_for_what_was_stored_before(file: Path) -> None:
    for name in "abc":
        using(storing(name), file)
    assert using(read("a"), file, entries=1) is None
    assert using(read("c"), file)
    using(read("c"), file, entries=0)
    assert list(file.parent.iterdir()) == []


def _store_for_ever(file: Path, started: Any) -> None:
    store = DiskStore(file, 10, 100_000)
    for number in range(1 << 30):
        put(store, str(number), content=str(number) * 1000)
        started.set()


def test_a_process_that_is_killed_leaves_what_was_before_or_what_came_after(file: Path) -> None:
    processes = multiprocessing.get_context("spawn")
    for _ in range(2):
        started = processes.Event()
        writer = processes.Process(target=_store_for_ever, args=(file, started))
        writer.start()
        assert started.wait(60)
        assert writer.pid
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(60)
        with sqlite3.connect(file) as seen:
            rows = seen.execute("SELECT id, conversation FROM responses").fetchall()
            assert seen.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        seen.close()
        assert 0 < len(rows) <= 10
        store = DiskStore(file, 10, 100_000)
        for name, conversation in rows:
            assert (entry := store.get("", name))
            assert (
                entry.conversation == conversation == StoredResponse.of("", {}, [{"content": name * 1000}]).conversation
            )
        store.close()


def _text_instead(file: Path) -> None:
    file.write_text("no store at all" * 1000)


def _another_format(file: Path) -> None:
    with sqlite3.connect(file) as changed:
        changed.execute("PRAGMA user_version = 7")


def _holes(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    file.write_bytes(content)


def _other_rows(file: Path) -> None:
    with sqlite3.connect(file) as changed:
        changed.execute("UPDATE responses SET conversation = '[1, 2]'")


@pytest.mark.parametrize("damage", [_text_instead, _another_format, _holes, _other_rows])
def test_a_damaged_file_is_set_aside_and_said(
    file: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    using(storing("a", SECRET), file)
    damage(file)

    async def use(store: ResponseStore) -> None:
        assert await store.get("", "a") is None
        await storing("b")(store)
        assert await store.get("", "b")

    using(use, file)
    assert using(read("b"), file)
    assert file.with_name(f"{file.name}.damaged").exists()
    assert len(caplog.messages) == 1
    assert "set aside" in caplog.messages[0]


def test_what_cannot_be_written_stays_in_memory_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("no folder")

    async def use(store: ResponseStore) -> None:
        for name in "ab":
            await storing(name)(store)
        assert await store.get("", "a")
        assert await store.remove("", "a")
        assert await store.get("", "a") is None
        with pytest.raises(CannotForget):
            await store.remove("", "c")

    using(use, tmp_path / "taken" / "responses.sqlite")
    assert len(caplog.messages) == 1
    assert "kept in memory" in caplog.messages[0]


def test_a_full_disk_still_tells_what_it_holds_and_takes_more_when_it_has_room(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: DiskStore, *_: object) -> None:
        connection = self._opened()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        whole_put(self, *_)  # type: ignore[arg-type]

    whole_put = DiskStore.put

    async def use(store: ResponseStore) -> None:
        await storing("before")(store)
        with monkeypatch.context() as patch:
            patch.setattr(DiskStore, "put", full)
            await storing("full", "x" * 2_000_000)(store)
            assert await store.get("", "before")
            assert await store.get("", "full")
        await store._run(lambda: store._disk and store._disk._opened().execute("PRAGMA max_page_count = 100000"))
        await storing("after")(store)

    using(use, file, size=10_000_000)
    assert [name for name in ("before", "full", "after") if using(read(name), file, size=10_000_000)] == [
        "before",
        "after",
    ]
    assert len(caplog.messages) == 1
