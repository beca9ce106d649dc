from __future__ import annotations

import mlx.core as mx
import pytest

from chorus.rank.cache import caches
from chorus.rank.cache.caches import CacheError
from chorus.rank.upstream.decoders import ArraysCache, CacheList, KVCache, RotatingKVCache


def fed(*entries: object, tokens: int = 3, value: float = 1.0) -> list[object]:
    for entry in entries:
        if isinstance(entry, ArraysCache):
            entry.cache = [mx.full((1, 2), value) for _ in entry.cache]
        else:
            rows = mx.full((1, 2, tokens, 4), value)
            entry.update_and_fetch(rows, rows)  # type: ignore[attr-defined]
    return list(entries)


def keys(cache: list[object], place: int = 0) -> mx.array:
    return cache[place].keys_and_values()[0]  # type: ignore[attr-defined]


def test_a_row_shares_no_array_object_and_its_writes_stay_its_own() -> None:
    cache = [*fed(KVCache(), RotatingKVCache(max_size=8), ArraysCache(2)), CacheList(*fed(KVCache(), ArraysCache(1)))]
    alone = caches.row(cache, 0)
    assert not {id(array) for array in caches.arrays(cache)} & {id(array) for array in caches.arrays(alone)}
    for entry in alone[:2]:
        rows = mx.full((1, 2, 1, 4), 7.0)
        entry.update_and_fetch(rows, rows)
    assert keys(alone).shape[2] == 4
    for place in (0, 1):
        assert keys(cache, place).shape[2] == 3
        assert mx.all(keys(cache, place) == 1.0).item()


def test_rows_go_into_a_batch_and_come_out_as_they_were() -> None:
    singles = [fed(KVCache(), tokens=count, value=float(count)) for count in (2, 5, 3)]
    batch = caches.merge(singles)
    batch = caches.extend(batch, caches.merge([fed(KVCache(), tokens=4, value=4.0)]))
    batch = caches.keep(batch, [0, 2, 3])
    for row, count in enumerate((2, 3, 4)):
        alone = keys(caches.extract(batch, row))
        assert alone.shape[2] == count
        assert mx.all(alone == float(count)).item()


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(CacheError):
        caches.keep(caches.merge([fed(KVCache())]), [])
    with pytest.raises(CacheError):
        caches.merge([])


def test_an_entry_at_several_places_stays_one_entry() -> None:
    def shared() -> list[object]:
        entry = KVCache()
        return [*fed(entry), entry]

    cache = shared()
    batch = caches.keep(caches.extend(caches.merge([cache, shared()]), caches.merge([shared()])), [0, 2])
    for result in (caches.row(cache, 0), batch, caches.extract(batch, 0)):
        assert result[0] is result[1]
    assert keys(batch).shape[0] == 2
    assert caches.size_bytes(cache) == cache[0].nbytes  # type: ignore[attr-defined]
    assert len(caches.arrays(cache)) == 2


def test_ghosts_count_tokens_and_hold_no_bytes() -> None:
    ghosts: list[object] = [
        KVCache(),
        RotatingKVCache(max_size=4),
        ArraysCache(2),
        CacheList(KVCache(), ArraysCache(1)),
    ]
    for count in (3, 4, 1, 1):
        for ghost in ghosts:
            caches.advance_ghost(ghost, 1, count)
    real = RotatingKVCache(max_size=4)
    for count in (3, 4, 1, 1):
        fed(real, tokens=count)
    assert caches.size_bytes(ghosts) == 0
    assert (ghosts[0].offset, ghosts[1].offset, ghosts[1]._idx) == (9, real.offset, real._idx)  # type: ignore[attr-defined]
    assert mx.array_equal(ghosts[1].make_mask(3, window_size=4), real.make_mask(3, window_size=4))  # type: ignore[attr-defined]
    batch = caches.merge([ghosts, caches.row(ghosts, 0)])
    caches.advance_ghost(batch[2], 2, 1)
    assert batch[2].batch_size == 2
    assert caches.size_bytes(batch) == 0


def test_newest_rows_are_those_written_last() -> None:
    for entry in (KVCache(), RotatingKVCache(max_size=4), RotatingKVCache(max_size=9)):
        fed(entry, tokens=5)
        fed(entry, tokens=2, value=2.0)
        assert mx.all(caches.newest(entry, 2)[0] == 2.0).item()
        fed(entry, tokens=1, value=3.0)
        assert mx.all(caches.newest(entry, 1)[1] == 3.0).item()
        assert caches.newest(entry, 1)[1].shape == (1, 2, 1, 4)
