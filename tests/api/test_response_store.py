from __future__ import annotations

from chorus.api.openai.responses.store import ResponseStore


def test_the_one_unused_longest_goes_first() -> None:
    store = ResponseStore(most_entries=2, most_bytes=10_000)
    store.put("", {"id": "a"}, [])
    store.put("", {"id": "b"}, [])
    assert store.get("", "a")
    store.put("", {"id": "c"}, [])
    assert store.get("", "b") is None
    assert store.get("", "a")
    assert store.get("", "c")


def test_bytes_are_bounded_too() -> None:
    store = ResponseStore(most_entries=100, most_bytes=3000)
    for name in "abcdef":
        store.put("", {"id": name}, [{"content": "x" * 1000}])
    assert len(store) == 2
    store.put("", {"id": "small"}, [])
    assert store.get("", "small")


def test_what_is_larger_than_the_store_drives_out_nobody() -> None:
    store = ResponseStore(most_entries=100, most_bytes=3000)
    store.put("", {"id": "kept"}, [{"content": "x" * 1000}])
    store.put("", {"id": "huge"}, [{"content": "x" * 5000}])
    assert store.get("", "huge") is None
    assert (kept := store.get("", "kept"))
    assert kept.messages == [{"content": "x" * 1000}]


def test_nobody_sees_what_another_owner_stored() -> None:
    store = ResponseStore(10, 10_000)
    store.put("alice", {"id": "a"}, [])
    assert store.get("bob", "a") is None
    assert not store.remove("bob", "a")
    assert store.remove("alice", "a")
    assert len(store) == 0
