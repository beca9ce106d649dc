from __future__ import annotations

import mlx.core as mx
import pytest

from chorus.rank.cache.rows import KeyValueRows, Lengths
from chorus.rank.cuda import masks
from chorus.rank.cuda.masks import MOST_KEPT, Meaning, meaning, note
from chorus.rank.upstream.decoders import KVCache


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_known", type(masks._known)())


def rows_of(*lengths: int) -> KeyValueRows:
    singles = []
    for length in lengths:
        single = KVCache()
        single.update_and_fetch(mx.zeros((1, 1, length, 4)), mx.zeros((1, 1, length, 4)))
        singles.append(single)
    return KeyValueRows.merge(singles)


@pytest.mark.parametrize(("count", "window"), [(1, None), (1, 4), (3, None), (3, 2)])
def test_the_mask_of_unequal_rows_is_known_with_the_lengths_that_the_keys_will_have(
    count: int, window: int | None
) -> None:
    rows = rows_of(2, 7, 5)
    known = meaning(rows.make_mask(count, window_size=window))
    assert known
    assert (known.lengths.values, known.queries, known.window) == (
        (2 + count, 7 + count, 5 + count),
        count,
        window or 0,
    )
    keys, _ = rows.update_and_fetch(mx.zeros((3, 1, count, 4)), mx.zeros((3, 1, count, 4)))
    assert keys.shape[2] == known.lengths.longest
    assert known.lengths.array.tolist() == list(known.lengths.values)


def test_a_mask_that_was_changed_on_its_way_is_nobodys() -> None:
    mask = rows_of(2, 7).make_mask(1)
    assert isinstance(mask, mx.array)
    assert meaning(mask) is not None
    assert meaning(mask & True) is None
    assert meaning(mask[:, :, :, :4]) is None


@pytest.mark.parametrize("mask", [None, "causal", 5])
def test_what_is_no_mask_of_ours_means_nothing(mask: object) -> None:
    assert meaning(mask) is None


def test_no_more_masks_are_held_than_models_ask_for_at_once() -> None:
    made = [note(mx.zeros((1,)), Meaning(Lengths([number]), 1)) for number in range(3 * MOST_KEPT)]
    assert len(masks._known) == MOST_KEPT
    assert [meaning(mask) is not None for mask in made] == [False] * 2 * MOST_KEPT + [True] * MOST_KEPT
