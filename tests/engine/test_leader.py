from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import jsonschema
import mlx.core as mx
import numpy as np
import psutil
import pytest

from chorus.config.grammar import GrammarLimits
from chorus.engine.leader import Leader, StopLeader, Submit
from chorus.engine.room import LESS_ROOM, RankRoom, Room
from chorus.engine.scheduling.scheduler import within_memory
from chorus.errors import ChorusError
from chorus.messages.engine import Finish, Pooling, Progress, Request, Sampling
from chorus.messages.grammar import Grammar, GrammarError, GrammarPart
from chorus.messages.rank import Evict, Feed, Step
from chorus.rank.load import LoadedShard
from chorus.text.grammar.client import Constraint
from chorus.text.tokenizer import Tokenizer
from tests.engine.conftest import MakeLeader
from tests.support.freeze import freeze
from tests.support.grammars import DEADLINE, GrammarHost
from tests.support.mac import FakeMetal


def run(leader: Leader, *requests: Request, constraints: Mapping[str, Constraint] | None = None) -> None:
    for request in requests:
        assert leader.scheduler.submit(request, (constraints or {}).get(request.id)) is None
    while not leader.idle:
        leader.turn()


def tokens_of(news: list[Progress]) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for progress in news:
        found[progress.id] += progress.tokens
    return found


def test_requests_of_every_kind_get_the_same_tokens_alone_and_together(make_leader: MakeLeader) -> None:
    requests = [
        Request(f"1:{i}", tuple(range(3 + i, 40 + 11 * i)), 5 + i, sampling=rules)
        for i, rules in enumerate(
            [
                Sampling(),
                Sampling(temperature=1.0, seed=4),
                Sampling(temperature=0.8, top_p=0.9, seed=5, repetition_penalty=1.3),
                Sampling(temperature=1.2, top_k=20, seed=6, presence_penalty=0.5, frequency_penalty=0.2),
                Sampling(temperature=1.0, seed=7, xtc_probability=0.5, xtc_threshold=0.05),
                Sampling(logit_bias={7: 3.0}),
            ]
        )
    ]
    together_leader, together = make_leader(prefill_chunk=16)
    run(together_leader, *requests)
    alone_leader, alone = make_leader(prefill_chunk=16)
    for request in requests:
        run(alone_leader, request)
    assert tokens_of(together) == tokens_of(alone)


def test_what_is_queued_is_accepted_before_its_first_token_and_what_is_refused_never_is(
    make_leader: MakeLeader,
) -> None:
    leader, news = make_leader(max_batch=1, max_queue=1)
    for name in ("1:first", "1:second", "1:third"):
        leader.post(Submit(Request(name, (1, 2, 3), 2)))
    leader._take_commands()
    leader.turn()
    assert [progress.accepted for progress in news[:3]] == [True, False, False]
    assert news[1].finish is Finish.OVERLOADED
    assert not news[0].tokens

    leader.post(StopLeader("the end"))
    leader.run()
    assert not any(progress.accepted for progress in news[3:])


def test_log_probabilities_are_the_models_own(make_leader: MakeLeader, shard: LoadedShard) -> None:
    leader, news = make_leader()
    prompt = (5, 6, 7, 8)
    run(
        leader,
        Request("1:a", prompt, 4, logprobs=3, sampling=Sampling(temperature=1.0, seed=1)),
        Request("1:b", (9,), 4),
    )
    told = [entry for progress in news if progress.id == "1:a" for entry in progress.logprobs]
    drawn = tokens_of(news)["1:a"]
    assert len(told) == 4
    assert not any(progress.logprobs for progress in news if progress.id == "1:b")
    for i, (token, entry) in enumerate(zip(drawn, told, strict=True)):
        tokens = mx.array([[*prompt, *drawn[:i]]])
        logits = np.array(shard.stage.forward(tokens, shard.stage.new_cache())[0][0])
        expected = logits - np.logaddexp.reduce(logits)
        assert entry.logprob == pytest.approx(expected[token], abs=1e-4)
        best = np.argsort(-expected)[:3]
        assert [token for token, _ in entry.top] == best.tolist()
        assert [value for _, value in entry.top] == pytest.approx(expected[best], abs=1e-4)


def test_a_bad_step_fails_its_own_request_alone(make_leader: MakeLeader, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, news = make_leader()
    run_step = leader._runner.run

    def fail_for_long_prompts(step, *rest):  # type: ignore[no-untyped-def]
        if not step.decode and step.tokens > 50:
            raise RuntimeError("out of memory")
        return run_step(step, *rest)

    monkeypatch.setattr(leader._runner, "run", fail_for_long_prompts)
    run(leader, Request("1:good", (1, 2, 3), 6), Request("1:bad", tuple(range(100)), 6))
    finishes = {progress.id: progress for progress in news if progress.finish}
    assert finishes["1:bad"].finish is Finish.FAILED
    assert "out of memory" in finishes["1:bad"].error
    assert finishes["1:good"].finish is Finish.LENGTH
    assert leader._runner.sequences == 0


def test_nothing_is_kept_of_sequences_that_ended(make_leader: MakeLeader) -> None:
    leader, _ = make_leader()
    run(leader, *(Request(f"1:{i}", tuple(range(1, 5 + i)), 3 + i) for i in range(6)))
    assert leader._runner.sequences == 0
    assert leader._runner.cache_bytes == 0


def test_logits_are_still_there_for_the_step_that_lets_go_of_them(make_leader: MakeLeader) -> None:
    """One request begins with them, and the room that they took is given to another that is admitted beside it."""
    leader, _ = make_leader()
    leader._kept_logits[5] = mx.zeros((8,))
    step = Step(1, (Evict(5),), (Feed(1, (), recalled=5),), logits=True)
    launched = leader._launch(step)
    assert launched is not None
    assert launched[1][0].shape == (1, 8)
    assert not leader._kept_logits


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 20},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars(tiny_model: Path) -> Iterator[GrammarHost]:
    """With all the time they need: on a busy machine a process may have to wait for its turn at every token."""
    with GrammarHost(tiny_model, 512, GrammarLimits(compile_seconds=DEADLINE, mask_seconds=DEADLINE)) as host:
        yield host


def test_a_schema_is_kept_at_any_temperature(make_leader: MakeLeader, grammars: GrammarHost, tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    leader, news = make_leader()
    requests = [
        Request(
            f"1:{seed}",
            (5, 6, 7),
            200,
            stop_tokens=tokenizer.eos_ids,
            sampling=Sampling(temperature=1.5, seed=seed),
        )
        for seed in range(8)
    ]
    schema = Grammar("json_schema", json.dumps(SCHEMA))
    constraints = {request.id: grammars.open(schema, tokenizer.eos_ids) for request in requests}
    free = Request("1:free", (5, 6, 7), 20, sampling=Sampling(temperature=1.5, seed=1))
    run(leader, *requests, free, constraints=constraints)
    finishes = {progress.id: progress.finish for progress in news if progress.finish}
    for request in requests:
        text = tokenizer.decode(tokens_of(news)[request.id])
        if finishes[request.id] is Finish.STOP:
            jsonschema.validate(json.loads(text), SCHEMA)
    assert sum(finish is Finish.STOP for finish in finishes.values()) >= 6
    assert len(tokens_of(news)["1:free"]) == 20


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", '{"type": "no such"}'),
        Grammar("regex", "(["),
        Grammar("lark", "start: nope"),
        Grammar("gbnf", "root ::= ("),
    ],
)
def test_a_grammar_that_cannot_be_compiled_says_so_in_one_line(grammars: GrammarHost, grammar: Grammar) -> None:
    with pytest.raises(GrammarError) as caught:
        grammars.open(grammar, frozenset({2}))
    assert "\n" not in str(caught.value)


def test_a_regular_expression_is_followed(make_leader: MakeLeader, grammars: GrammarHost, tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    leader, news = make_leader()
    constraint = grammars.open(Grammar("regex", "(yes|no)"), tokenizer.eos_ids)
    request = Request("1:a", (5,), 20, tokenizer.eos_ids, Sampling(temperature=2.0, seed=3))
    run(leader, request, constraints={"1:a": constraint})
    assert tokenizer.decode(tokens_of(news)["1:a"]) in ("yes", "no")
    assert news[-1].finish is Finish.STOP


def test_a_grammar_that_stands_still_ends_its_own_answer_and_no_other(
    make_leader: MakeLeader, tiny_model: Path
) -> None:
    """The other one has the same few seconds, and its process hardly needs any of them."""
    leader, news = make_leader()
    held = Grammar("regex", "[a-z]+", origins=(GrammarPart("guided_regex", "regex", "[a-z]+"),))
    with GrammarHost(tiny_model, 512, GrammarLimits(compile_seconds=DEADLINE, mask_seconds=5.0)) as grammars:
        slow = grammars.open(held, frozenset({2}))
        (first,) = psutil.Process(grammars.pid).children()
        quick = grammars.open(held, frozenset({2}))
        freeze(first)
        run(
            leader,
            Request("1:slow", (5,), 8, frozenset({2})),
            Request("1:quick", (5,), 8, frozenset({2})),
            Request("1:free", (5,), 8),
            constraints={"1:slow": slow, "1:quick": quick},
        )
        ends = {progress.id: progress for progress in news if progress.finish}
        assert (ends["1:slow"].finish, ends["1:slow"].field) == (Finish.REJECTED, "guided_regex")
        assert "grammar_mask_seconds" in ends["1:slow"].error
        assert all(ends[name].finish in (Finish.LENGTH, Finish.STOP) for name in ("1:quick", "1:free"))
        assert not psutil.wait_procs([first], timeout=DEADLINE)[1]


@pytest.mark.parametrize("pooling", Pooling)
def test_an_embedding_is_the_pooled_hidden_state_whatever_the_chunks(
    make_leader: MakeLeader, shard: LoadedShard, pooling: Pooling
) -> None:
    prompt = tuple(range(3, 60))
    leader, news = make_leader(prefill_chunk=16)
    run(leader, Request("1:text", (4, 5), 6), Request("1:e", prompt, 1, pooling=pooling))
    told = next(progress for progress in news if progress.id == "1:e")
    assert told.finish is Finish.STOP
    stage = shard.stage
    assert stage.final_norm is not None
    hidden = stage.final_norm(stage.forward(mx.array([prompt]), stage.new_cache(), logits=False)[0])[0]
    expected = hidden[-1] if pooling is Pooling.LAST else hidden.mean(axis=0)
    np.testing.assert_allclose(told.embedding, np.array(expected), atol=1e-4)
    assert len(tokens_of(news)["1:text"]) == 6
    assert leader._runner.sequences == 0


def test_a_gpu_that_failed_ends_the_engine_and_not_one_request_only(
    make_leader: MakeLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, news = make_leader()
    words = "[METAL] Command buffer execution failed: Caused GPU Hang Error"

    def fail(*_: object) -> None:
        raise RuntimeError(words)

    monkeypatch.setattr(leader._runner, "run", fail)
    with pytest.raises(ChorusError, match=r"the GPU of this Mac failed, and only a new process .*: \[METAL\]"):
        run(leader, Request("1:a", (1, 2, 3), 4))
    assert not any(told.finish for told in news)


def test_an_engine_without_requests_gives_back_the_buffers_that_mlx_keeps(
    make_leader: MakeLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chorus.engine.leader.IDLE_SECONDS", 0.01, raising=False)
    metal = FakeMetal(working_set=8 << 30).play(monkeypatch)
    leader, _ = make_leader()
    run(leader, Request("1:a", (1, 2, 3), 4))
    for _ in range(2):
        leader._take_commands()
    assert metal.cleared == 1


def test_a_step_without_memory_costs_room_and_nobody_who_is_not_to_blame(
    make_leader: MakeLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, news = make_leader()
    room = Room((RankRoom(budget=4_000_000, per_token=100),))
    leader.scheduler.limits = within_memory(leader.scheduler.limits, room)
    run_step, failed = leader._runner.run, []

    def fail_once(step, *rest):  # type: ignore[no-untyped-def]
        if step.decode and len(step.feeds) > 1 and not failed:
            failed.append(step)
            raise MemoryError
        return run_step(step, *rest)

    monkeypatch.setattr(leader._runner, "run", fail_once)
    run(leader, *(Request(f"1:{i}", tuple(range(3, 9 + i)), 12) for i in range(3)))
    ends = [progress for progress in news if progress.finish]
    assert failed
    assert [end.finish for end in ends] == 3 * [Finish.LENGTH]
    assert leader.scheduler.limits.room.ranks[0].budget == LESS_ROOM * 4_000_000
