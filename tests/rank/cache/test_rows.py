from __future__ import annotations

import weakref

import mlx.core as mx
import pytest

from chorus.rank.cache import caches
from chorus.rank.cache.rows import STEP, KeyValueRows
from chorus.rank.upstream.decoders import KVCache

HEADS, WIDTH = 2, 4


def tokens(rows: int, count: int, start: float = 0.0, width: int = WIDTH) -> mx.array:
    """Every number is different from all others, of this call and of calls with another start."""
    return start + mx.arange(rows * HEADS * count * width).reshape(rows, HEADS, count, width)


def single(count: int, start: float) -> KVCache:
    cache = KVCache()
    if count:
        cache.update_and_fetch(tokens(1, count, start), -tokens(1, count, start))
    return cache


def merged(*lengths: int) -> tuple[KeyValueRows, list[KVCache]]:
    singles = [single(length, 1e4 * (row + 1)) for row, length in enumerate(lengths)]
    return KeyValueRows.merge(singles), singles


def hold_the_same(rows: KeyValueRows, singles: list[KVCache]) -> bool:
    assert list(rows.lengths.values) == [cache.offset for cache in singles]
    pairs = [(rows.extract(row).keys_and_values(), cache.keys_and_values()) for row, cache in enumerate(singles)]
    return all(mx.array_equal(ours, theirs).item() for pair in pairs for ours, theirs in zip(*pair, strict=True))


def write(rows: KeyValueRows, singles: list[KVCache], count: int) -> tuple[mx.array, mx.array]:
    """The same tokens to the rows and to caches that are alone."""
    new = tokens(len(singles), count, 1e6)
    for row, cache in enumerate(singles):
        cache.update_and_fetch(new[row : row + 1], -new[row : row + 1])
    return rows.update_and_fetch(new, -new)


@pytest.mark.parametrize("lengths", [(3, 3, 3), (2, 5, 3), (0, 4, 1), (STEP - 1, STEP, 2)])
def test_rows_hold_what_sequences_alone_would(lengths: tuple[int, ...]) -> None:
    rows, singles = merged(*lengths)
    for count in (1, 1, 3, 1):
        write(rows, singles, count)
    assert hold_the_same(rows, singles)


def test_rows_have_room_in_steps_and_say_what_they_hold() -> None:
    rows, singles = merged(2, STEP - 1)
    held = 2 * HEADS * STEP * WIDTH * 4 * 2
    assert rows.nbytes == held
    write(rows, singles, 1)
    assert rows.nbytes == held
    write(rows, singles, 1)
    assert rows.nbytes == 2 * held
    rows.filter(mx.array([0]))
    assert rows.nbytes == held // 2


def test_rows_come_and_go() -> None:
    rows, singles = merged(2, 5, 3)
    write(rows, singles, 1)
    arriving, more = merged(STEP + 1, 4)
    rows.extend(arriving)
    singles += more
    write(rows, singles, 2)
    rows.filter(mx.array([4, 0, 2]))
    singles = [singles[4], singles[0], singles[2]]
    write(rows, singles, 1)
    assert hold_the_same(rows, singles)


def test_nobody_sees_what_rows_had_forgotten_before_others_joined() -> None:
    rows, singles = merged(6, 9)
    rows.trim_row(0, 2)
    singles[0].trim(2)
    arriving, more = merged(3)
    singles += more
    rows.extend(arriving)
    mask = rows.make_mask(1)
    keys, values = write(rows, singles, 1)
    asked = mx.random.normal((3, HEADS, 1, WIDTH), key=mx.random.key(0))
    together = mx.fast.scaled_dot_product_attention(asked, keys, values, scale=1e-4, mask=mask)
    for row, cache in enumerate(singles):
        held = cache.keys_and_values()
        alone = mx.fast.scaled_dot_product_attention(asked[row : row + 1], *held, scale=1e-4)
        assert mx.allclose(together[row : row + 1], alone, rtol=1e-4)


def test_rows_join_a_cache_that_was_never_written() -> None:
    rows, singles = merged(0, 0)
    assert rows.keys is None
    assert rows.extract(1).empty()
    arriving, more = merged(3)
    rows.extend(arriving)
    write(rows, [*singles, *more], 1)
    assert hold_the_same(rows, [*singles, *more])


def test_a_row_forgets_its_last_tokens_by_itself() -> None:
    rows, singles = merged(4, 4, 4)
    rows.trim_row(1, 3)
    singles[1].trim(3)
    write(rows, singles, 2)
    assert hold_the_same(rows, singles)


def test_a_mask_lets_each_row_see_its_own_tokens() -> None:
    rows, _ = merged(2, 0, 3)
    mask = rows.make_mask(2)
    assert isinstance(mask, mx.array)
    assert mask.shape == (3, 1, 2, 5)
    assert mask[:, 0].sum(axis=-1).tolist() == [[3, 4], [1, 2], [4, 5]]
    window = rows.make_mask(1, window_size=2)
    assert isinstance(window, mx.array)
    assert window[:, 0, 0].astype(mx.int32).tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1]]


def test_equal_rows_need_no_array_for_a_mask_or_an_offset() -> None:
    rows, _ = merged(3, 3)
    assert (rows.make_mask(1), rows.make_mask(2), rows.offset) == (None, "causal", 3)
    rows.trim_row(0, 1)
    assert isinstance(rows.make_mask(1), mx.array)
    assert mx.array(rows.offset).tolist() == [2, 3]


@pytest.mark.parametrize("lengths", [(3, 3), (2, 5)])
def test_the_newest_tokens_are_those_written_last(lengths: tuple[int, ...]) -> None:
    rows, singles = merged(*lengths)
    write(rows, singles, 2)
    keys, values = rows.newest(2)
    assert mx.array_equal(keys, tokens(2, 2, 1e6))
    assert mx.array_equal(values, -keys)


@pytest.mark.parametrize("lengths", [(3, 3), (2, 5)])
def test_ghosts_and_values_without_width_are_counted_and_never_scattered(lengths: tuple[int, ...]) -> None:
    def alone(count: int, width: int) -> KVCache:
        cache = KVCache()
        cache.update_and_fetch(tokens(1, count, width=width), mx.zeros((1, HEADS, count, 0)))
        return cache

    for width in (0, WIDTH):
        rows = KeyValueRows.merge([alone(length, width) for length in lengths])
        _, values = rows.update_and_fetch(tokens(2, 1, width=width), mx.zeros((2, HEADS, 1, 0)))
        rows.extend(KeyValueRows.merge([alone(1, width)]))
        rows.filter(mx.array([1, 2]))
        mx.eval(rows.arrays, rows.newest(1))
        assert rows.lengths.values == (lengths[1] + 1, 1)
        assert values.shape == (2, HEADS, lengths[1] + 1, 0)


def test_what_was_taken_from_a_row_stays_when_the_row_is_written() -> None:
    rows, singles = merged(3, 5)
    taken = rows.extract(0)
    before = mx.array(taken.keys)
    mx.eval(before, taken.keys)
    rows.trim_row(0, 2)
    write(rows, singles, 1)
    assert mx.array_equal(taken.keys, before)


def test_layers_whose_rows_are_equally_long_share_what_follows_from_it() -> None:
    """Also when a layer is never written: it falls behind, and holds nothing of what came after."""
    sequences = [[single(length, start) for start in (0.0, 1e4)] + [KVCache()] for length in (2, 5)]
    first, second, unwritten = batch = caches.merge(sequences)
    for _ in range(2):
        asked = first.make_mask(1)
        write(first, [entry[0] for entry in sequences], 1)
        assert second.make_mask(1) is asked
        write(second, [entry[1] for entry in sequences], 1)
        assert second.lengths is first.lengths
        assert second.offset is first.offset
    assert hold_the_same(first, [entry[0] for entry in sequences])
    assert unwritten.lengths.values == (0, 0)
    caches.extend(batch, caches.merge([[single(3, 0.0), single(3, 0.0), KVCache()]]))
    caches.keep(batch, [2, 0])
    assert second.lengths is first.lengths
    assert first.lengths.values == (3, 4)
    before = weakref.ref(first.lengths)
    first.append([tokens(2, 1)] * 2)
    second.append([tokens(2, 1)] * 2)
    assert before() is None
