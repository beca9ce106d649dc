from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chorus.engine.room import RankRoom, Room
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
from chorus.messages.engine import Finish, Progress, Request
from chorus.messages.rank import Drop, Leave, Step
from tests.engine.fake_ranks import Run

STOP = 9


def request(name: str, prompt: int, new: int = 4) -> Request:
    return Request(name, tuple(range(1, prompt + 1)), new, stop_tokens=frozenset({STOP}))


def tokens_for(step: Step, token: int = 5) -> dict[int, int]:
    return {feed.sequence: token for feed in step.feeds if not feed.partial}


def drain(scheduler: Scheduler, token: int = 5, most: int = 10_000) -> tuple[list[Step], list[Progress]]:
    """Run to the end with one step on its way at a time."""
    steps: list[Step] = []
    news: list[Progress] = []
    while (step := scheduler.next_step()) and len(steps) < most:
        steps.append(step)
        news += scheduler.finish(step, tokens_for(step, token))
    return steps, news


def test_a_prompt_is_fed_in_chunks_and_only_the_last_asks_for_logits() -> None:
    scheduler = Scheduler(SchedulerLimits(context=100, prefill_chunk=4))
    scheduler.submit(request("a", prompt=10, new=1))
    steps, news = drain(scheduler)
    fed = [step for step in steps if step.feeds]
    assert [len(step.feeds[0].tokens) for step in fed] == [4, 4, 2]
    assert [step.logits for step in fed] == [False, False, True]
    assert sum((step.feeds[0].tokens for step in fed), ()) == tuple(range(1, 11))
    assert news[-1].finish is Finish.LENGTH


def test_at_most_one_chunk_is_fed_between_two_decodes() -> None:
    scheduler = Scheduler(SchedulerLimits(context=10_000, prefill_chunk=50))
    for name in "abcd":
        scheduler.submit(request(name, prompt=5, new=200))
    for _ in range(10):
        step = scheduler.next_step()
        assert step
        scheduler.finish(step, tokens_for(step))
    scheduler.submit(request("long", prompt=2000, new=2))
    steps, _ = drain(scheduler)
    kinds = "".join("D" if step.decode else "P" for step in steps if step.feeds)
    assert "PP" not in kinds
    assert kinds.count("P") == 40


def test_short_prompts_share_the_budget_of_one_chunk() -> None:
    scheduler = Scheduler(SchedulerLimits(context=1000, prefill_chunk=32))
    scheduler.submit(request("running", prompt=4, new=50))
    step = scheduler.next_step()
    assert step
    scheduler.finish(step, tokens_for(step))
    for name, size in (("a", 6), ("b", 7), ("c", 15)):
        scheduler.submit(request(name, prompt=size, new=5))
        step = scheduler.next_step()
        assert step
        assert not step.decode
    scheduler.submit(request("d", prompt=16, new=5))
    step = scheduler.next_step()
    assert step
    assert step.decode


def test_new_prompts_begin_as_one_rectangle_and_the_rest_of_them_rides_on_the_decodes() -> None:
    scheduler = Scheduler(SchedulerLimits(context=1000))
    for name, size in (("a", 14), ("b", 16), ("c", 30), ("d", 14)):
        scheduler.submit(request(name, prompt=size, new=2))
    steps, news = drain(scheduler)
    fed = [step for step in steps if step.feeds]
    assert [(step.decode, [len(feed.tokens) for feed in step.feeds]) for step in fed[:3]] == [
        (False, [14, 14, 14, 14]),
        (False, [16]),
        (True, [1, 1, 1, 1]),
    ]
    assert [feed.partial for feed in fed[0].feeds] == [False, True, True, False]
    assert fed[2].sequences == (1, 2, 4, 3)
    assert [feed.tokens for feed in fed[2].feeds if feed.partial] == [(15,)]
    assert Counter(progress.id for progress in news if progress.tokens) == dict.fromkeys("abcd", 2)


def test_a_rectangle_of_prompts_is_no_larger_than_one_chunk() -> None:
    scheduler = Scheduler(SchedulerLimits(context=1000, prefill_chunk=64))
    for name in "abcdefgh":
        scheduler.submit(request(name, prompt=20, new=2))
    first = scheduler.next_step()
    assert first
    assert first.sequences == (1, 2, 3)


def test_without_look_ahead_rows_join_the_batch_in_their_order() -> None:
    """One whose prompt is not whole could be fed at once, were it not behind one whose first token is on its way."""
    scheduler = Scheduler(SchedulerLimits(context=100, lookahead=False))
    scheduler.submit(request("a", prompt=3))
    scheduler.submit(request("b", prompt=4))
    first = scheduler.next_step()
    assert first
    assert first.sequences == (1, 2)
    assert scheduler.next_step() is None
    scheduler.finish(first, tokens_for(first))
    second = scheduler.next_step()
    assert second
    assert second.sequences == (1, 2)


def test_without_look_ahead_a_decode_waits_for_the_tokens_before_it() -> None:
    scheduler = Scheduler(SchedulerLimits(context=100, lookahead=False))
    scheduler.submit(request("a", prompt=3))
    first = scheduler.next_step()
    assert first
    assert scheduler.next_step() is None
    scheduler.finish(first, tokens_for(first))
    second = scheduler.next_step()
    assert second
    assert second.decode
    assert second.feeds[0].tokens == (5,)
    assert scheduler.next_step() is None


def test_with_look_ahead_the_next_decode_takes_its_token_from_the_graph() -> None:
    scheduler = Scheduler(SchedulerLimits(context=100))
    scheduler.submit(request("a", prompt=3))
    assert scheduler.next_step()
    ahead = scheduler.next_step()
    assert ahead
    assert ahead.decode
    assert ahead.feeds[0].tokens == ()


def test_no_forward_is_wasted_on_a_sequence_that_will_have_all_its_tokens() -> None:
    scheduler = Scheduler(SchedulerLimits(context=100))
    scheduler.submit(request("a", prompt=3, new=1))
    assert scheduler.next_step()
    assert scheduler.next_step() is None


def test_a_stop_token_ends_the_request_and_is_not_reported() -> None:
    scheduler = Scheduler(SchedulerLimits(context=100))
    scheduler.submit(request("a", prompt=3))
    _, news = drain(scheduler, token=STOP)
    assert [(progress.tokens, progress.finish) for progress in news] == [((), Finish.STOP)]
    assert news[0].timing
    assert news[0].timing.generated_tokens == 1


def test_a_cancelled_request_leaves_the_batch_at_the_next_step() -> None:
    scheduler = Scheduler(SchedulerLimits(context=100))
    for name in "ab":
        scheduler.submit(request(name, prompt=3, new=50))
    for _ in range(4):
        step = scheduler.next_step()
        assert step
        scheduler.finish(step, tokens_for(step))
    ended = scheduler.cancel("a")
    assert ended
    assert ended.finish is Finish.CANCELLED
    step = scheduler.next_step()
    assert step
    assert step.operations == (Drop(1),)
    assert step.sequences == (2,)


def test_cancelling_a_waiting_request_sends_nothing_to_the_ranks() -> None:
    scheduler = Scheduler(SchedulerLimits(context=100))
    scheduler.submit(request("a", prompt=3))
    assert scheduler.cancel("a")
    assert scheduler.next_step() is None
    assert scheduler.idle


def test_a_full_queue_says_so() -> None:
    scheduler = Scheduler(SchedulerLimits(context=100, max_queue=2))
    answers = [scheduler.submit(request(name, prompt=3)) for name in "abc"]
    assert [answer and answer.finish for answer in answers] == [None, None, Finish.OVERLOADED]


def test_a_request_that_cannot_fit_is_refused_with_the_numbers() -> None:
    scheduler = Scheduler(SchedulerLimits(context=10, vocabulary=50))
    refused = scheduler.submit(request("a", prompt=8, new=3))
    assert refused
    assert "8 prompt tokens and 3 new ones exceed the context of 10" in refused.error
    foreign = scheduler.submit(Request("b", (1, 50), 1))
    assert foreign
    assert "token id 50" in foreign.error
    assert scheduler.idle


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    scheduler = Scheduler(SchedulerLimits(context=10_000, prefill_chunk=10))
    scheduler.submit(request("long", prompt=1000))
    scheduler.submit(request("short", prompt=5))
    steps = [scheduler.next_step() for _ in range(2)]
    assert [step.sequences for step in steps if step] == [(1,), (2,)]


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=12),
    chunk=st.integers(1, 16),
    batch=st.integers(1, 5),
    depth=st.integers(1, 4),
    lookahead=st.booleans(),
    lanes=st.integers(1, 3),
    choices=st.randoms(use_true_random=False),
)
def test_every_request_gets_all_its_tokens_whatever_comes_between(
    sizes: list[tuple[int, int]], chunk: int, batch: int, depth: int, lookahead: bool, lanes: int, choices: object
) -> None:
    """Random arrivals, cancels and steps under way: prompts are fed whole and in order, nothing is left over."""
    limits = SchedulerLimits(context=100, prefill_chunk=chunk, max_batch=batch, lookahead=lookahead, lanes=lanes)
    scheduler = Scheduler(limits)
    waiting = [request(str(i), *size) for i, size in enumerate(sizes)]
    expected = {r.id: r for r in waiting}
    fed: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
    whole: set[int] = set()
    rows: defaultdict[int, list[int]] = defaultdict(list)
    got: Counter[str] = Counter()
    ended: dict[str, Finish | None] = {}
    under_way: list[Step] = []
    live: set[int] = set()
    while waiting or under_way or not scheduler.idle:
        if waiting and choices.random() < 0.4:  # type: ignore[attr-defined]
            assert scheduler.submit(waiting.pop()) is None
        open_now = [name for name in expected if name not in ended]
        leaving = choices.choice(open_now) if open_now and choices.random() < 0.05 else ""  # type: ignore[attr-defined]
        if cancelled := scheduler.cancel(leaving):
            ended[cancelled.id] = cancelled.finish
        if len(under_way) < depth + 1 and (step := scheduler.next_step()):
            under_way.append(step)
            for operation in step.operations:
                assert isinstance(operation, Drop | Leave)
                if isinstance(operation, Drop):
                    live.discard(operation.sequence)
                for held in rows.values():
                    if operation.sequence in held:
                        held.remove(operation.sequence)
            assert len(step.feeds) <= batch
            live.update(step.sequences)
            if step.decode:
                stay = [row for row in rows[step.lane] if row in step.sequences]
                assert list(step.sequences[: len(stay)]) == stay, "rows that stay keep their order"
                rows[step.lane] = list(step.sequences)
                others = {row for lane, held in rows.items() if lane != step.lane for row in held}
                assert not others & set(step.sequences), "nobody decodes in two lanes"
                under_way_here = [other for other in under_way if other.decode and other.lane == step.lane]
                assert len(under_way_here) <= (2 if lookahead else 1)
            for feed in step.feeds:
                # Between the end of its prompt and its end a sequence is fed nothing but what was sampled for it.
                fed[feed.sequence] += feed.tokens if feed.sequence not in whole else ()
                if not feed.partial:
                    whole.add(feed.sequence)
        elif under_way:
            step = under_way.pop(0)
            for progress in scheduler.finish(step, tokens_for(step)):
                got[progress.id] += len(progress.tokens)
                if progress.finish:
                    ended[progress.id] = progress.finish
    assert not live, "every sequence that was fed has been dropped"
    prompts = {r.prompt for r in expected.values()}
    assert all(fed[number] in prompts for number in whole)
    for name, finish in ended.items():
        assert finish in (Finish.LENGTH, Finish.CANCELLED)
        if finish is Finish.LENGTH:
            assert got[name] == expected[name].max_tokens
    assert sum(finish is Finish.LENGTH for finish in ended.values()) + sum(
        finish is Finish.CANCELLED for finish in ended.values()
    ) == len(expected)


def test_a_long_newcomer_waits_until_the_rectangle_fits() -> None:
    scheduler = Scheduler(SchedulerLimits(context=4000, room=Room((RankRoom(budget=1700, per_token=1, layers=99),))))
    scheduler.submit(request("a", prompt=10, new=40))
    scheduler.submit(request("b", prompt=1100, new=190))
    for _ in range(4):
        step = scheduler.next_step()
        assert step
        assert step.sequences == (1,), "1536 beside 256 would not fit into 1700"
        scheduler.finish(step, tokens_for(step))
    scheduler.cancel("a")
    following = [scheduler.next_step() for _ in range(2)]
    assert any(2 in step.sequences for step in following if step)


def test_a_request_that_no_memory_can_hold_is_refused_at_once() -> None:
    room = Room((RankRoom(budget=1040, per_token=2, layers=99),))
    refused = Scheduler(SchedulerLimits(context=1000, room=room)).submit(request("a", prompt=500, new=40))
    assert refused
    assert refused.finish is Finish.REJECTED
    assert "540 tokens need more memory than is left for 512" in refused.error


def test_owners_take_turns() -> None:
    scheduler = Scheduler(SchedulerLimits(context=100, max_batch=4))
    for owner in ("busy", "busy", "busy", "quiet", "busy", "quiet", "late"):
        scheduler.submit(Request(f"{owner}-{scheduler.queued}", (1, 2), 5, owner=owner))
    first = scheduler.next_step()
    assert first
    assert first.sequences == (1, 4, 7, 2)


def begin(scheduler: Scheduler, *names: str, new: int = 20) -> None:
    """Prompts in, first tokens out."""
    for name in names:
        scheduler.submit(request(name, prompt=3, new=new))
    step = scheduler.next_step()
    assert step
    assert len(step.feeds) == len(names)
    scheduler.finish(step, tokens_for(step))


def test_lanes_decode_in_turn_and_each_waits_for_its_own_tokens_only() -> None:
    scheduler = Scheduler(SchedulerLimits(context=100, lookahead=False, lanes=2))
    begin(scheduler, *"abcd")
    first, second = scheduler.next_step(), scheduler.next_step()
    assert first
    assert second
    assert {first.lane, second.lane} == {0, 1}
    assert sorted(first.sequences + second.sequences) == [1, 2, 3, 4]
    assert scheduler.next_step() is None
    scheduler.finish(first, tokens_for(first))
    third = scheduler.next_step()
    assert third
    assert (third.lane, third.sequences) == (first.lane, first.sequences)
    assert scheduler.next_step() is None


def test_a_newcomer_joins_the_lane_with_most_room() -> None:
    scheduler = Scheduler(SchedulerLimits(context=100, lookahead=False, lanes=2))
    begin(scheduler, *"abcd")
    assert decode_once(scheduler) == {0: (1, 3), 1: (2, 4)}
    scheduler.cancel("b")
    begin(scheduler, "e")
    assert decode_once(scheduler) == {0: (1, 3), 1: (4, 5)}


def test_a_chunk_of_a_prompt_comes_once_between_two_decodes_of_any_lane() -> None:
    scheduler = Scheduler(SchedulerLimits(context=10_000, prefill_chunk=50, lookahead=False, lanes=2))
    begin(scheduler, *"abcd", new=200)
    scheduler.submit(request("long", prompt=2000, new=2))
    steps, _ = drain(scheduler)
    for lane in (0, 1):
        kinds = "".join("P" if not step.decode else "D" for step in steps if not step.decode or step.lane == lane)
        assert "PP" not in kinds.strip("P")


def test_when_streams_end_others_move_so_that_lanes_stay_even() -> None:
    scheduler = Scheduler(SchedulerLimits(context=100, lookahead=False, lanes=2))
    begin(scheduler, *"abcdef")
    lanes = decode_once(scheduler)
    assert [len(rows) for rows in lanes.values()] == [3, 3]
    alone, *gone = lanes[0]
    for number in gone:
        scheduler.cancel("abcdef"[number - 1])
    step = scheduler.next_step()
    assert step
    moved = [operation.sequence for operation in step.operations if isinstance(operation, Leave)]
    assert moved == [max(lanes[1])]
    after = {step.lane: step.sequences} | decode_once(scheduler)
    assert after == {0: (alone, *moved), 1: tuple(number for number in lanes[1] if number not in moved)}


@pytest.mark.parametrize("lookahead", [False, True])
def test_a_stream_that_moves_under_way_loses_and_doubles_nothing(lookahead: bool) -> None:
    scheduler = Scheduler(SchedulerLimits(context=1000, lookahead=lookahead, lanes=2))
    run = Run(scheduler, depth=3)
    requests = [Request(str(i), (i + 2, 7, 9), 12 if i % 2 else 60) for i in range(8)]
    for each in requests:
        run.submit(each)
    run.until_idle()
    assert all(run.right(each) for each in requests)
    assert not run.ranks.sequences


def test_nobody_moves_for_the_last_few_tokens() -> None:
    scheduler = Scheduler(SchedulerLimits(context=1000, lookahead=False, lanes=2))
    begin(scheduler, *"abcdef", new=9)
    for number in decode_once(scheduler)[0]:
        scheduler.cancel("abcdef"[number - 1])
    steps, _ = drain(scheduler)
    assert not any(isinstance(operation, Leave) for step in steps for operation in step.operations)


def test_nobody_moves_where_a_newcomer_will_fill_the_lane() -> None:
    scheduler = Scheduler(SchedulerLimits(context=1000, lookahead=False, lanes=2, prefill_chunk=18))
    begin(scheduler, *"abcdef", new=90)
    emptied = decode_once(scheduler)[0]
    for number in emptied[1:]:
        scheduler.cancel("abcdef"[number - 1])
    scheduler.submit(request("g", prompt=40, new=90))
    scheduler.submit(request("h", prompt=40, new=90))
    for _ in range(20):
        step = scheduler.next_step()
        assert step
        assert not any(isinstance(operation, Leave) for operation in step.operations)
        scheduler.finish(step, tokens_for(step))
    assert {len(rows) for rows in decode_once(scheduler).values()} == {3}


def decode_once(scheduler: Scheduler) -> dict[int, tuple[int, ...]]:
    """One decode of each lane that can; who is in which."""
    lanes = {}
    sent = []
    while step := scheduler.next_step():
        sent.append(step)
        if step.decode:
            lanes[step.lane] = step.sequences
    for step in sent:
        scheduler.finish(step, tokens_for(step))
    return lanes
