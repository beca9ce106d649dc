"""What was computed is kept for requests that begin alike, and nobody's answer changes by it."""

from __future__ import annotations

import random

import pytest

from chorus.engine.prefix.disk import DiskIndex
from chorus.engine.prefix.index import Limits, PrefixIndex
from chorus.engine.prefix.saved import Saved, key_of
from chorus.engine.room import UNLIMITED, RankRoom, Room
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits
from chorus.messages.engine import Request, Sampling
from chorus.messages.rank import Keeping
from tests.engine.fake_ranks import STOP, VOCABULARY, Run

PLAIN = Keeping(anywhere=True)
STATES = Keeping()
WINDOWS = Keeping(reach=40)
KINDS = pytest.mark.parametrize("keeping", [PLAIN, STATES, WINDOWS], ids=["plain", "states", "windows"])


def run_of(keeping: Keeping, room: Room = UNLIMITED, **limits: int | bool) -> Run:
    depth = int(limits.pop("depth", 1))
    all_limits = SchedulerLimits(context=100_000, room=room, **{"prefill_chunk": 16, **limits})  # type: ignore[arg-type]
    return Run(Scheduler(all_limits, prefixes=PrefixIndex(keeping, room, Limits())), depth)


def request(name: str, prompt: tuple[int, ...], new: int = 5, **more: object) -> Request:
    return Request(name, prompt, new, frozenset({STOP}), **more)  # type: ignore[arg-type]


def tokens(seed: int, count: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(1, VOCABULARY), k=count))


def cached(run: Run, name: str) -> int:
    timing = run.ended[name].timing
    assert timing
    return timing.cached_tokens


@KINDS
def test_the_next_turn_reads_only_what_is_new(keeping: Keeping) -> None:
    run = run_of(keeping)
    first = request("a", tokens(1, 100))
    run.submit(first)
    run.until_idle()
    said = (*first.prompt, *run.answers["a"])
    second = request("b", (*said, *tokens(2, 20)))
    run.submit(second)
    run.until_idle()
    assert run.right(first)
    assert run.right(second)
    assert cached(run, "b") >= len(said) - 1
    assert run.ended["a"].timing.stored_tokens == 100  # type: ignore[union-attr]
    assert run.ended["b"].timing.stored_tokens <= 21  # type: ignore[union-attr]


def test_an_exact_repeat_feeds_one_token_where_caches_can_be_cut() -> None:
    run = run_of(PLAIN)
    for name in "ab":
        run.submit(request(name, tokens(1, 100)))
        run.until_idle()
    assert cached(run, "b") == 99
    assert run.answers["a"] == run.answers["b"]


@pytest.mark.parametrize("keeping", [STATES, WINDOWS], ids=["states", "windows"])
def test_an_exact_repeat_of_what_cannot_be_cut_feeds_nothing(keeping: Keeping) -> None:
    run = run_of(keeping)
    for name in "abc":
        before = run.ranks.fed
        run.submit(request(name, tokens(1, 100), new=2))
        run.until_idle()
    assert cached(run, "c") == 100
    assert run.ranks.fed - before <= 2
    assert run.answers["a"] == run.answers["b"] == run.answers["c"]


def test_where_states_are_kept_the_third_request_finds_the_place_where_two_have_parted() -> None:
    run = run_of(STATES)
    system = tokens(1, 50)
    for number, name in enumerate("abc"):
        run.submit(request(name, (*system, *tokens(10 + number, 30))))
        run.until_idle()
    assert [cached(run, name) for name in "abc"] == [0, 0, 50]


def test_requests_that_part_a_few_words_behind_a_cut_leave_a_state_at_the_cut() -> None:
    run = run_of(STATES)
    system = tokens(1, 50)
    for name, prompt in {"a": (7, 8, 9), "b": (7, 8, 6), "c": (3, 8)}.items():
        run.submit(request(name, (*system, *prompt, *tokens(ord(name), 30)), cuts=(50,)))
        run.until_idle()
    assert cached(run, "c") == 50


def test_a_needed_cut_keeps_a_state_there() -> None:
    run = run_of(STATES)
    prompt = tokens(1, 60)
    run.submit(request("a", prompt, needed_cuts=(55,)))
    run.until_idle()
    run.submit(request("b", (*prompt[:55], *tokens(2, 9))))
    run.until_idle()
    assert cached(run, "b") == 55


@KINDS
def test_scopes_share_nothing(keeping: Keeping) -> None:
    run = run_of(keeping)
    run.submit(request("a", tokens(1, 100), scope="one"))
    run.until_idle()
    run.submit(request("b", tokens(1, 110), scope="other"))
    run.submit(request("c", tokens(1, 110), scope="one", uncached=True))
    run.until_idle()
    assert cached(run, "b") == cached(run, "c") == 0


@KINDS
def test_prompts_that_come_together_are_read_once(keeping: Keeping) -> None:
    run = run_of(keeping)
    shared = tokens(1, 200)
    requests = [request(str(n), (*shared, *tokens(n + 5, 8)), new=3) for n in range(6)]
    for one in requests:
        run.submit(one)
    run.until_idle()
    assert all(map(run.right, requests))
    assert [cached(run, one.id) for one in requests] == [0, 200, 200, 200, 200, 200]
    assert run.ranks.fed <= 208 + 5 * 8 + 6 * 4


@KINDS
def test_equal_prompts_are_read_once(keeping: Keeping) -> None:
    run = run_of(keeping)
    for name in "abcd":
        run.submit(request(name, tokens(1, 100), new=3, sampling=Sampling(temperature=1.0, seed=ord(name))))
    run.until_idle()
    assert run.ranks.fed <= 100 + 3 + 4 * 4


@KINDS
def test_what_a_cancelled_request_has_read_is_kept(keeping: Keeping) -> None:
    run = run_of(keeping)
    prompt = tokens(1, 200)
    run.submit(request("a", prompt))
    for _ in range(4):
        run.turn()
    run.cancel("a")
    run.until_idle()
    run.submit(request("b", prompt))
    run.until_idle()
    assert cached(run, "b") >= 48
    assert run.right(request("b", prompt))


@KINDS
def test_already_answered_tokens_are_output(keeping: Keeping) -> None:
    run = run_of(keeping)
    whole = request("a", tokens(3, 40), new=30)
    run.submit(whole)
    run.until_idle()
    for count in (1, 7, len(run.answers["a"]) - 1):
        resumed = request(f"r{count}", whole.prompt, new=30, answered=tuple(run.answers["a"][:count]))
        run.submit(resumed)
        run.until_idle()
        assert run.answers[resumed.id] == run.answers["a"]
        assert run.ended[resumed.id].timing.generated_tokens == run.ended["a"].timing.generated_tokens  # type: ignore[union-attr]


def test_clearing_forgets_everything() -> None:
    run = run_of(PLAIN)
    run.submit(request("a", tokens(1, 100)))
    run.until_idle()
    assert run.scheduler.cache_facts().tokens >= 100
    entries, _ = run.scheduler.clear_cache()
    assert entries == 2
    run.until_idle()
    assert not run.ranks.segments
    assert run.scheduler.cache_facts().tokens == 0


def test_a_failed_step_leaves_nothing_that_was_taken_from_it() -> None:
    run = run_of(PLAIN)
    run.submit(request("a", tokens(1, 100)))
    for _ in range(3):
        run.turn()
    run.scheduler.fail((1,), "broken")
    run.turn()
    assert not run.ranks.segments
    assert run.scheduler.prefixes.entries == 0


def test_a_pinned_conversation_goes_last() -> None:
    room = Room((RankRoom(budget=4096, per_token=1, layers=99),))
    run = run_of(PLAIN, room)
    run.submit(request("pinned", tokens(1, 500), conversation="mine"))
    run.until_idle()
    for n in range(12):
        run.submit(request(str(n), tokens(100 + n, 500)))
        run.until_idle()
    run.submit(request("again", tokens(1, 500)))
    run.until_idle()
    assert cached(run, "again") == 499
    assert run.scheduler.cache_facts().conversations == 1
    assert run.scheduler.cache_facts().evicted_tokens > 0


def test_the_youngest_stream_makes_room_and_goes_on_later() -> None:
    room = Room((RankRoom(budget=1400, per_token=1, layers=99),))
    run = run_of(PLAIN, room)
    requests = [request(name, tokens(ord(name), 10), new=700) for name in "ab"]
    requests = [Request(r.id, r.prompt, r.max_tokens) for r in requests]
    for one in requests:
        run.submit(one)
    run.until_idle()
    assert all(map(run.right, requests))
    assert run.scheduler.cache_facts().preempted >= 1


@KINDS
def test_what_memory_has_forgotten_is_read_from_disk(keeping: Keeping) -> None:
    room = Room((RankRoom(budget=1200, per_token=1, layers=99),))
    run = run_of(keeping, room)
    disk = run.scheduler.prefixes.disk = DiskIndex(keeping, ranks=1)
    requests = [request(str(n), tokens(n, 300)) for n in range(5)]
    for one in requests:
        run.submit(one)
        run.until_idle()
    again = request("again", (*requests[0].prompt, *run.answers["0"], *tokens(9, 5)))
    run.submit(again)
    run.until_idle()
    assert run.right(again)
    assert cached(run, "again") >= 300
    assert disk.restored_tokens >= 300
    lines = list(disk.lines())
    later = run_of(keeping, room)
    later.ranks.files = run.ranks.files
    later.scheduler.prefixes.disk = DiskIndex(keeping, ranks=1)
    later.scheduler.prefixes.disk.read(["{}", *lines, "no line of ours"], set(run.ranks.files))
    assert later.scheduler.prefixes.disk.files == disk.files
    later.submit(again)
    later.until_idle()
    assert later.right(again)
    assert cached(later, "again") >= 300


def test_a_list_that_was_tampered_with_brings_nothing() -> None:
    file = Saved("", 0, (1, 2, 3), None, key_of("", (1, 2, 3), 0, state=False))
    disk = DiskIndex(PLAIN, ranks=1)
    disk.add(file)
    (line,) = disk.lines()
    other = DiskIndex(PLAIN, ranks=1)
    other.read([line.replace('"start": 0', '"start": 1'), line.replace('"scope": ""', '"scope": "x"')], {file.key})
    assert other.files == 0
    other.read([line.replace('"start": 0', '"start": 1e999'), "[" * 100_000], {file.key})
    assert other.files == 0
    other.read([line], set())
    assert other.files == 0
    other.read([line], {file.key})
    assert other.files == 1


def read_files(disk: DiskIndex, seconds: float, *lengths: int, failing: int = 0) -> None:
    """Files are read side by side, the last few of them in vain."""
    files = [Saved("", 0, tokens(n, length), None, f"{n:020x}") for n, length in enumerate(lengths)]
    for file in files:
        assert disk.ask(file, now=10.0, segment=1)
    for number, file in enumerate(files):
        disk.answer(0, file.key, number < len(files) - failing, 10.0 + seconds)


def test_how_long_reading_takes_is_measured_over_all_files_of_a_prompt() -> None:
    disk = DiskIndex(PLAIN, ranks=1)
    read_files(disk, 9.0, 10, 1000, failing=1)
    assert disk.reading.seconds == 0
    read_files(disk, 1.0, 990, 10)
    assert disk.reading.seconds == pytest.approx(0.001)
    assert disk.restored_tokens == 1010


def test_a_disk_that_was_slower_than_computing_is_tried_again_after_a_while() -> None:
    disk = DiskIndex(PLAIN, ranks=1)
    stored = tokens(1, 300)
    disk.add(Saved("", 0, stored, None, key_of("", stored, 0, state=False)))
    disk.reading.note(1.0, 100)
    disk.computing.note(0.5, 100)
    tries = [bool(disk.find("", (*stored, 1), 0)) for _ in range(10)]
    assert tries[0] is False
    assert tries[-1] is True


@KINDS
def test_a_beginning_that_had_to_make_room_on_disk_is_written_again_with_what_follows_it(keeping: Keeping) -> None:
    run = run_of(keeping, UNLIMITED)
    index, now = run.scheduler.prefixes, [0.0]
    index.clock = lambda: now[0]
    disk = index.disk = DiskIndex(keeping, ranks=1)

    def told(name: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
        run.submit(one := request(name, prompt))
        run.until_idle()
        return (*one.prompt, *run.answers[name])

    def idle() -> set[str]:
        now[0] += 10
        run.turn()
        run.until_idle()
        return set(run.ranks.files)

    first = told("first", tokens(1, 300))
    for key in idle():
        del run.ranks.files[key]
        run.scheduler.files_done(0, (), (), [key])
    assert idle() == set()
    assert disk.files == 0
    second = told("second", (*first, *tokens(2, 100)))
    held = idle()
    later = DiskIndex(keeping, ranks=1)
    later.read(disk.lines(), held)
    files = later.find("", (*second, 1), 0)
    assert max(file.stop for file in files) >= 400
    assert min(file.start for file in files) == 0


def test_what_cannot_be_read_is_computed() -> None:
    room = Room((RankRoom(budget=1200, per_token=1, layers=99),))
    run = run_of(PLAIN, room)
    disk = run.scheduler.prefixes.disk = DiskIndex(PLAIN, ranks=1)
    requests = [request(str(n), tokens(n, 300)) for n in range(5)]
    for one in requests:
        run.submit(one)
        run.until_idle()
    run.ranks.files.clear()
    again = request("again", (*requests[0].prompt, *tokens(9, 5)))
    run.submit(again)
    run.until_idle()
    assert run.right(again)
    assert cached(run, "again") == 0
    assert disk.restored_tokens == 0


def test_one_long_sequence_does_not_widen_everybodys_row() -> None:
    room = Room((RankRoom(budget=20_000, per_token=1, layers=99),))
    run = run_of(PLAIN, room, prefill_chunk=4096)
    requests = [Request("long", tokens(1, 12_000), 40), *(Request(str(n), tokens(n, 10), 40) for n in range(2, 9))]
    for one in requests:
        run.submit(one)
    most = 0
    while not run.scheduler.idle:
        run.turn()
        most = max(most, run.scheduler.running)
    run.until_idle()
    assert all(map(run.right, requests))
    assert most == 8
    assert run.scheduler.cache_facts().preempted == 0


@KINDS
@pytest.mark.parametrize("seed", range(12))
def test_random_conversations_get_the_answers_of_a_model_that_keeps_nothing(keeping: Keeping, seed: int) -> None:
    """Branches, edited turns, repeats, prefixes, cancels; in half of the runs there is hardly any memory."""
    rng = random.Random(seed)
    budget = rng.choice([700, 1500, 3000])
    tight = Room((RankRoom(budget, 1, 5, 7), RankRoom(2 * budget, 2, 1, 3)))
    options = {"depth": rng.choice([1, 2, 4]), "lanes": rng.choice([1, 2]), "max_batch": rng.choice([1, 3, 8])}
    run = run_of(keeping, tight if seed % 2 else UNLIMITED, lookahead=rng.random() < 0.7, **options)
    if seed % 3:
        run.scheduler.prefixes.disk = DiskIndex(keeping, ranks=1)
    histories: list[tuple[int, ...]] = [tokens(seed, 70)]
    requests: list[Request] = []
    for number in range(40):
        base = rng.choice(histories)
        base = base[: rng.randrange(1, len(base) + 1)] if rng.random() < 0.3 else base
        prompt = (*base, *tokens(rng.randrange(10**6), rng.randrange(30))) or (1,)
        prompt = prompt[-300:]
        cuts = tuple(sorted(rng.sample(range(1, len(prompt)), 2))) if len(prompt) > 4 and rng.random() < 0.5 else ()
        name, stops = str(number), frozenset({STOP, rng.randrange(VOCABULARY)})
        sampling = Sampling(seed=rng.randrange(3))
        one = Request(name, prompt, rng.randrange(1, 40), stops, sampling, needed_cuts=cuts, scope=rng.choice("aab"))
        requests.append(one)
        run.submit(one)
        for _ in range(rng.randrange(12)):
            run.turn()
        if rng.random() < 0.2:
            run.cancel(rng.choice(requests).id)
        ended = [r for r in requests if r.id in run.ended]
        histories += [(*r.prompt, *run.answers[r.id]) for r in ended[-2:]]
        if rng.random() < 0.1 and run.ranks.files:
            del run.ranks.files[rng.choice(list(run.ranks.files))]
    run.until_idle()
    assert all(map(run.right, requests))
    run.check_that_nothing_is_left()
