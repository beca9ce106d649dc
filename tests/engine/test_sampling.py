from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from chorus.engine import sampling
from chorus.engine.sampling import Draw, Sampler, score, seed_word
from chorus.messages.engine import Sampling

VOCABULARY = 64


def logits(rows: int = 1, seed: int = 3) -> mx.array:
    return mx.random.normal((rows, VOCABULARY), key=mx.random.key(seed)) * 3


def draws(count: int, **rules: object) -> list[Draw]:
    """The same distribution drawn at many positions."""
    return [Draw(Sampling(**{"temperature": 1.0, "seed": 11, **rules}), position) for position in range(count)]  # type: ignore[arg-type]


def many(row: mx.array, count: int, **rules: object) -> list[int]:
    return Sampler().sample(mx.repeat(row, count, axis=0), draws(count, **rules)).tolist()


def test_temperature_zero_takes_the_best_token() -> None:
    table = logits(4)
    assert Sampler().sample(table, [Draw(Sampling(), 0)] * 4).tolist() == mx.argmax(table, axis=-1).tolist()


def test_a_row_draws_the_same_token_alone_and_in_any_batch() -> None:
    table = logits(8)
    rules = [
        Sampling(temperature=t, top_p=p, top_k=k, min_p=m, seed=s)
        for t, p, k, m, s in [
            (0, 1, 0, 0, 1),
            (1, 1, 0, 0, 2),
            (0.7, 0.9, 0, 0, 3),
            (1.5, 1, 5, 0, 4),
            (1, 1, 0, 0.1, 5),
            (1, 0.5, 10, 0.05, 6),
            (2, 1, 0, 0, 7),
            (1, 0.99, 0, 0, 2),
        ]
    ]
    together = Sampler().sample(table, [Draw(r, 100 + i, (1, 2), (3,)) for i, r in enumerate(rules)]).tolist()
    alone = [Sampler().sample(table[i : i + 1], [Draw(r, 100 + i, (1, 2), (3,))]).item() for i, r in enumerate(rules)]
    assert together == alone


def test_seed_and_position_decide_the_noise() -> None:
    row = mx.zeros((1, VOCABULARY))
    first = many(row, 40)
    assert first == many(row, 40)
    assert first != many(row, 40, seed=12)
    assert len(set(first)) > 10


def test_seeds_of_any_size_and_sign_give_a_word() -> None:
    words = {seed_word(seed) for seed in (0, 1, -1, 2**63, 2**64 - 1)}
    assert len(words) == 5
    assert all(0 <= word < 2**32 for word in words)


def test_draws_follow_the_distribution() -> None:
    row = logits()
    drawn = np.bincount(many(row, 20_000), minlength=VOCABULARY) / 20_000
    expected = np.array(mx.softmax(row, axis=-1)[0])
    assert np.abs(drawn - expected).max() < 0.015


def test_top_k_keeps_the_k_best() -> None:
    row = logits()
    best = set(np.argsort(-np.array(row[0]))[:3].tolist())
    assert set(many(row, 2000, top_k=3, temperature=5.0)) == best


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    row = logits()
    order = np.argsort(-np.array(row[0]))
    shares = np.array(mx.softmax(row, axis=-1)[0])[order]
    count = int(np.searchsorted(np.cumsum(shares), 0.8)) + 1
    assert set(many(row, 4000, top_p=0.8)) <= set(order[:count].tolist())
    assert set(many(row, 50, top_p=1e-6)) == {int(order[0])}


def test_min_p_drops_tokens_far_below_the_best() -> None:
    row = logits()
    shares = np.array(mx.softmax(row, axis=-1)[0])
    allowed = set(np.flatnonzero(shares >= 0.3 * shares.max()).tolist())
    assert set(many(row, 3000, min_p=0.3)) <= allowed


def test_filters_of_one_row_leave_the_others_alone() -> None:
    table = mx.zeros((2, VOCABULARY))
    free = [
        Sampler().sample(
            table, [Draw(Sampling(temperature=1, top_k=1, seed=1), p), Draw(Sampling(temperature=1, seed=2), p)]
        )[1]
        for p in range(60)
    ]
    assert len({token.item() for token in free}) > 20


@pytest.mark.parametrize(("bias", "chosen"), [({7: 100.0}, 7), ({7: 100.0, 9: 101.0}, 9)])
def test_logit_bias_moves_the_choice(bias: dict[int, float], chosen: int) -> None:
    assert Sampler().sample(logits(), [Draw(Sampling(logit_bias=bias), 0)]).item() == chosen


def test_a_repetition_penalty_looks_at_the_last_tokens_of_prompt_and_output() -> None:
    row = mx.zeros((1, VOCABULARY))
    row[0, 5], row[0, 6], row[0, 7] = 3.0, 2.9, -1.0
    strong = Sampling(repetition_penalty=2.0, repetition_context=2)
    assert Sampler().sample(row, [Draw(strong, 0, prompt=(5,), output=())]).item() == 6
    assert Sampler().sample(row, [Draw(strong, 0, prompt=(5,), output=(6,))]).item() == 5  # both halved: 5 stays ahead
    assert Sampler().sample(row, [Draw(strong, 0, prompt=(5,), output=(6, 8))]).item() == 5  # 5 lies too far back


def test_presence_and_frequency_penalties_count_the_output_alone() -> None:
    row = mx.zeros((1, VOCABULARY))
    row[0, 5], row[0, 6] = 1.0, 0.5
    assert Sampler().sample(row, [Draw(Sampling(presence_penalty=0.6), 0, prompt=(5, 5))]).item() == 5
    assert Sampler().sample(row, [Draw(Sampling(presence_penalty=0.6), 0, output=(5,))]).item() == 6
    assert Sampler().sample(row, [Draw(Sampling(frequency_penalty=0.3), 0, output=(5,))]).item() == 5
    assert Sampler().sample(row, [Draw(Sampling(frequency_penalty=0.3), 0, output=(5, 5))]).item() == 6


@pytest.mark.parametrize("penalty", ["presence", "frequency"])
def test_with_a_context_they_look_at_the_last_tokens_of_prompt_and_output(penalty: str) -> None:
    row = mx.zeros((1, VOCABULARY))
    row[0, 5], row[0, 6] = 1.0, 0.5
    near = Sampling(**{f"{penalty}_penalty": 0.6, f"{penalty}_context": 2})
    assert Sampler().sample(row, [Draw(near, 0, prompt=(5,), output=(7,))]).item() == 6
    assert Sampler().sample(row, [Draw(near, 0, prompt=(5,), output=(7, 8))]).item() == 5  # 5 lies too far back


def test_presence_and_frequency_may_look_at_different_tokens() -> None:
    row = mx.zeros((1, VOCABULARY))
    row[0, 5], row[0, 6] = 1.0, 0.5
    both = Sampling(presence_penalty=0.3, presence_context=1, frequency_penalty=0.3)
    assert Sampler().sample(row, [Draw(both, 0, output=(5, 7))]).item() == 5  # counted once, and not present
    assert Sampler().sample(row, [Draw(both, 0, output=(7, 5))]).item() == 6


def test_half_precision_logits_are_sampled_in_full_precision() -> None:
    table = logits().astype(mx.bfloat16)
    assert Sampler().sample(table, draws(1)).tolist() == Sampler().sample(table.astype(mx.float32), draws(1)).tolist()


RULES = [
    Sampling(),
    Sampling(temperature=0.8, seed=2),
    Sampling(temperature=0.7, top_p=0.9, top_k=5, seed=3),
    Sampling(temperature=1.5, min_p=0.05, seed=4),
    Sampling(temperature=1.0, xtc_probability=1.0, xtc_threshold=0.01, seed=5),
]


def test_a_sampler_draws_the_same_while_rows_come_and_go() -> None:
    sampler, table = Sampler(), logits(len(RULES))
    for position, rows in enumerate([[0, 1, 2], [0, 1, 2], [0, 2], [1], [0], [3, 1, 4, 2], [4, 3]] * 3):
        batch = [Draw(RULES[row], 50 + position, (1, 2), [3] * position) for row in rows]
        drawn = sampler.sample(table[mx.array(rows)], batch).tolist()
        assert drawn == [
            Sampler().sample(table[row : row + 1], [draw]).item() for row, draw in zip(rows, batch, strict=True)
        ]


def test_what_an_accelerator_compiles_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    table = logits(len(RULES)).astype(mx.bfloat16)
    batches = [[Draw(rules, position) for rules in RULES] for position in (7, 8)]
    plain = [Sampler().sample(table, batch).tolist() for batch in batches]
    sampling._drawing.cache_clear()
    monkeypatch.setattr(sampling, "_on_cpu", lambda: False)
    compiled = [Sampler().sample(table, batch).tolist() for batch in batches]
    sampling._drawing.cache_clear()
    assert compiled == plain


def test_scores_are_read_for_the_rows_that_want_them() -> None:
    table = logits(3)
    scores = score(table, mx.array([1, 2, 3]), 4)
    told = scores.rows({0: 0, 2: 3})
    logprobs = np.array(table - mx.logsumexp(table, axis=-1, keepdims=True))
    assert set(told) == {0, 2}
    assert told[0].top == ()
    assert told[0].logprob == pytest.approx(logprobs[0, 1])
    assert [token for token, _ in told[2].top] == np.argsort(-logprobs[2])[:3].tolist()
    assert [logprob for _, logprob in told[2].top] == pytest.approx(np.sort(logprobs[2])[:-4:-1].tolist())
