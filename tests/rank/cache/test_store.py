from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from chorus.messages.rank import Drop, Feed, Fork, Part, Store
from chorus.rank.cache import caches
from chorus.rank.cache.caches import CacheError
from chorus.rank.cache.store import Keeping, SegmentStore, UnknownSegment, keeping, stack
from chorus.rank.upstream.decoders import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache
from tests.rank.cache.chain import KINDS, STAGES, Chain, chain
from tests.rank.cache.conversations import Conversations
from tests.support.architectures import ARCHITECTURES, UNSUPPORTED
from tests.support.architectures.build import instantiate
from tests.support.architectures.facts import difference

CLOSE = 1e-4
TOKENS = [(7 * n * n + 13 * n + 5) % 100 for n in range(40)]


@pytest.fixture(params=STAGES.values(), ids=STAGES)
def edges(request: pytest.FixtureRequest) -> tuple[int, ...]:
    return request.param


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_that_begins_with_what_is_stored_answers_as_one_that_computes_it(
    kind: str, edges: tuple[int, ...]
) -> None:
    model = chain(KINDS[kind], edges)
    talk = Conversations(model, seed=len(kind))
    for _ in range(14):
        talk.turn()
    assert talk.worst < CLOSE


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_fork_what_is_stored_go_on_side_by_side_and_leave_it_as_it_was(
    kind: str, edges: tuple[int, ...]
) -> None:
    model = chain(KINDS[kind], edges)
    model.feed(1, TOKENS[:9], begins=True)
    model.feed(1, TOKENS[9:11])
    model.operate(Store(1, 7, 0, 11, state=True), Drop(1))
    stored = model.stored_bytes
    rests = [TOKENS[11:15], TOKENS[21:25], TOKENS[31:35]]
    forks = [Fork(10 + row, (Part(7, 11),)) for row in range(3)]
    together = model.run(forks, [Feed(10 + row, tuple(rest)) for row, rest in enumerate(rests)])
    again = mx.concatenate([model.feed(10 + row, [42]) for row in range(3)])
    alone = mx.concatenate([fresh(model, [*TOKENS[:11], *rest]) for rest in rests])
    later = mx.concatenate([fresh(model, [*TOKENS[:11], *rest, 42]) for rest in rests])
    assert difference(together, alone) < CLOSE
    assert difference(again, later) < CLOSE
    assert model.stored_bytes == stored


def fresh(model: Chain, tokens: list[int]) -> mx.array:
    logits = model.feed(99, tokens, begins=True)
    model.operate(Drop(99))
    return logits


def decoded_together(model: Chain, *stores: Store) -> list[mx.array]:
    """Eight rows of unequal length; what is stored is so before the second step."""
    for row in range(8):
        model.feed(row, TOKENS[row : 10 + 2 * row], begins=True)
    feeds = [Feed(row, (row,)) for row in range(8)]
    return [model.run(operations, feeds, decode=True) for operations in ((), stores, ())]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "chunked"])  # whose sequences never share a batch
def test_storing_a_row_of_a_batch_leaves_every_row_as_it_was(kind: str, edges: tuple[int, ...]) -> None:
    undisturbed = decoded_together(chain(KINDS[kind], edges))
    model = chain(KINDS[kind], edges)
    got = decoded_together(model, Store(3, 50, 0, 14, state=True))
    assert all(mx.array_equal(ours, theirs).item() for ours, theirs in zip(got, undisturbed, strict=True))
    forked = model.run([Fork(60, (Part(50, 14),))], [Feed(60, (8, 9))])
    assert difference(forked, fresh(model, [*TOKENS[3:16], 3, 8, 9])) < CLOSE


def test_ghosts_take_no_bytes() -> None:
    whole, halves = (chain("gear", edges) for edges in STAGES.values())
    for model in (whole, halves):
        model.feed(1, TOKENS[:9], begins=True)
        model.operate(Store(1, 1, 0, 9, state=True))
    assert whole.stored_bytes == halves.stored_bytes
    assert all(runner.stored_bytes for runner in halves.runners)


def held(*entries: object, tokens: int = 8) -> list[object]:
    """A sequence whose token n has the key n."""
    for entry in entries:
        if isinstance(entry, ArraysCache):
            entry.cache = [mx.full((1, 2), float(tokens)), None]
        elif isinstance(entry, CacheList):
            held(*entry.caches, tokens=tokens)
        else:
            rows = mx.broadcast_to(mx.arange(tokens, dtype=mx.float32)[None, None, :, None], (1, 2, tokens, 4))
            entry.update_and_fetch(rows, rows)  # type: ignore[attr-defined]
    return list(entries)


def key_numbers(entry: object) -> list[float]:
    return entry.keys_and_values()[0][0, 0, :, 0].tolist()  # type: ignore[attr-defined]


def test_what_is_taken_has_its_exact_length_and_its_own_memory() -> None:
    store = SegmentStore()
    store.take(1, held(KVCache()), 2, 5, state=False)
    assert store.nbytes == 2 * 3 * 2 * 4 * 4
    store.split(1, 1, rest=2)
    assert store.nbytes == 2 * 3 * 2 * 4 * 4
    store.evict(2)
    assert store.nbytes == 2 * 1 * 2 * 4 * 4
    store.clear()
    assert store.nbytes == 0
    store.evict(1)
    with pytest.raises(UnknownSegment, match="segment 1 "):
        store.split(1, 1, rest=2)


def test_parts_are_joined_with_room_for_what_follows() -> None:
    store, cache = SegmentStore(), held(KVCache())
    store.take(1, cache, 0, 3, state=False)
    store.take(2, cache, 3, 8, state=False)
    (joined,) = store.join([Part(1, 3), Part(2, 2)], [KVCache()], room=252)
    assert key_numbers(joined) == [0, 1, 2, 3, 4]
    assert joined.keys.shape[2] == 512
    assert store.join([Part(1, 3)], [KVCache()])[0].keys.shape[2] == 256


def test_writing_to_a_fork_leaves_what_is_stored_as_it_was() -> None:
    store = SegmentStore()
    store.take(1, held(KVCache(), RotatingKVCache(4), ArraysCache(2)), 0, 8, state=True)

    def fork() -> list[object]:
        return store.join([Part(1, 8)], [KVCache(), RotatingKVCache(4), ArraysCache(2)])

    first, second = fork(), fork()
    assert not {id(array) for array in caches.arrays(first)} & {id(array) for array in caches.arrays(second)}
    for entry in first[:2]:
        rows = mx.full((1, 2, 1, 4), 99.0)
        entry.update_and_fetch(rows, rows)  # type: ignore[attr-defined]
    first[2][0] += 1.0  # type: ignore[index]
    assert key_numbers(first[0]) == [*range(8), 99]
    for untouched in (second, fork()):
        assert key_numbers(untouched[0]) == [*range(8)]
        assert key_numbers(untouched[1]) == [4, 5, 6, 7]
        assert untouched[2][0].tolist() == [[8.0, 8.0]]  # type: ignore[index]


def test_an_object_at_several_places_is_stored_once_and_stays_one() -> None:
    store, shared = SegmentStore(), KVCache()
    held(shared)
    store.take(1, [shared, CacheList(shared)], 0, 8, state=False)
    assert store.nbytes == 2 * 8 * 2 * 4 * 4
    again = KVCache()
    store.join([Part(1, 8)], [again, CacheList(again)])
    assert key_numbers(again) == [*range(8)]


def test_a_window_is_cut_to_its_size_in_the_order_of_its_tokens() -> None:
    store, window = SegmentStore(), RotatingKVCache(4)
    held(window, tokens=6)
    rows = mx.full((1, 2, 1, 4), 6.0)
    window.update_and_fetch(rows, rows)
    store.take(1, [window], 0, 7, state=True)
    (joined,) = store.join([Part(1, 7)], [RotatingKVCache(4)])
    assert (key_numbers(joined), joined.offset) == ([3, 4, 5, 6], 7)


@pytest.mark.parametrize("window", [RotatingKVCache(8), ChunkedKVCache(8)])
def test_a_state_within_the_reach_of_its_windows_can_be_cut_also_where_it_lies_behind_a_split(window: Any) -> None:
    store = SegmentStore()
    store.take(1, held(window, KVCache()), 0, 8, state=True)
    store.split(1, 5, rest=2)
    again = store.join([Part(1, 3), Part(2, 0)], [type(window)(8), KVCache()])
    assert [key_numbers(entry) for entry in again] == [[0, 1, 2], [0, 1, 2]]
    with pytest.raises(CacheError, match="segment 1 has no state"):
        store.join([Part(1, 5)], [type(window)(8), KVCache()])


def test_a_state_can_be_a_segment_of_its_own() -> None:
    store, cache = SegmentStore(), held(KVCache(), ArraysCache(2))
    store.take(1, cache, 0, 8, state=False)
    plain = store.nbytes
    store.take(2, cache, 8, 8, state=True)
    assert store.nbytes == plain + 8
    assert store.join([Part(1, 8), Part(2, 0)], [KVCache(), ArraysCache(2)])[1][0].tolist() == [[8.0, 8.0]]
    for segment, start in ((1, 0), (3, 8)):
        with pytest.raises(CacheError, match=f"segment {segment} cannot hold the tokens from {start} to 8"):
            store.take(segment, cache, start, 8, state=False)


def test_what_cannot_be_done_is_refused_by_name() -> None:
    store = SegmentStore()
    store.take(1, held(RotatingKVCache(4), KVCache()), 0, 8, state=True)
    store.take(2, held(ArraysCache(2), KVCache()), 0, 8, state=True)
    windows, states = [RotatingKVCache(4), KVCache()], [ArraysCache(2), KVCache()]
    refusals = [
        (lambda: store.join([Part(3, 1)], windows), "segment 3 is not stored here"),
        (lambda: store.join([Part(1, 9)], windows), "segment 1 holds the tokens from 0 to 8"),
        (lambda: store.join([Part(1, 8), Part(2, 8)], windows), "segment 2 .* to put behind 8"),
        (lambda: store.join([Part(1, 6)], windows), "tokens from 4 to 8 cannot be cut to end at 6"),
        (lambda: store.join([Part(2, 6)], states), "state of 8 tokens cannot go back to 6"),
        (lambda: store.join([], windows), "at least one"),
        (lambda: store.split(1, 8, 4), "cannot be split at 8"),
        (lambda: store.split(1, 4, 2), "split at 4 into 2"),
        (lambda: store.take(4, held(KVCache()), 5, 9, False), "the sequence has 8 tokens"),
        (lambda: store.take(4, held(KVCache()), 5, 5, False), "from 5 to 5"),
        (lambda: store.take(4, held(KVCache(), ArraysCache(2)), 0, 7, True), "stand at token 8, not at 7"),
        (lambda: stack([held(KVCache()), held(KVCache(), tokens=3)], [KVCache()]), r"of \[3, 8\] tokens"),
    ]
    for action, words in refusals:
        with pytest.raises((CacheError, UnknownSegment), match=words):
            action()


def test_rows_that_are_stacked_come_apart_again() -> None:
    def fresh_cache() -> list[object]:
        return [KVCache(), RotatingKVCache(4), ChunkedKVCache(4), ArraysCache(2), CacheList(KVCache(), KVCache())]

    rows = [held(*fresh_cache()), held(*fresh_cache())]
    rows[1][0].keys *= 2  # type: ignore[attr-defined]
    stacked = stack(rows, fresh_cache())
    for number, row in enumerate(rows):
        apart = caches.row(stacked, number)
        assert key_numbers(apart[0]) == key_numbers(row[0])
        assert [key_numbers(window) for window in apart[1:3]] == [[4, 5, 6, 7]] * 2
        assert apart[3][0].tolist() == [[8.0, 8.0]]


def test_what_may_be_kept_follows_from_the_classes_of_the_caches() -> None:
    plain, window, chunk, state = KVCache(), RotatingKVCache(6), ChunkedKVCache(8), ArraysCache(2)
    assert keeping([plain, CacheList(plain)], []) == Keeping(anywhere=True)
    assert keeping([plain, window, chunk], []) == Keeping(reach=6)
    assert keeping([plain, window, state], []) == Keeping()
    assert keeping([plain], ["phi3small"]).refusal.startswith("nothing that was computed is kept for phi3small: its")
    assert "how to cut a RotatingKVCache" in keeping([RotatingKVCache(6, keep=4)], []).refusal


REFUSED = {"deepseek_v41", "phi3small", "plamo3"}


def test_every_architecture_but_those_with_a_reason_keeps_what_it_computed() -> None:
    made = {name: instantiate(ARCHITECTURES[name], 0, mx.float32) for name in set(ARCHITECTURES) - set(UNSUPPORTED)}
    refused = {name for name, model in made.items() if keeping(caches.fresh(model), [name]).refusal}
    assert refused == REFUSED
