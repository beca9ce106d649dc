"""What crosses the engine link arrives as it was sent."""

from __future__ import annotations

from dataclasses import fields

import pytest

from chorus.messages.engine import (
    CacheFacts,
    Finish,
    Pooling,
    Progress,
    Request,
    Sampling,
    Timing,
    TokenLogprobs,
    cache_facts_from_wire,
    cache_facts_to_wire,
    embedding_from_wire,
    embedding_to_wire,
    progress_from_wire,
    progress_to_wire,
    request_from_wire,
    request_to_wire,
)
from chorus.messages.grammar import Grammar, GrammarPart
from chorus.messages.proto import engine_pb2 as pb

EVERY_RULE = Sampling(
    temperature=0.5,
    top_p=0.75,
    top_k=40,
    min_p=0.125,
    repetition_penalty=1.25,
    repetition_context=64,
    presence_penalty=-0.5,
    frequency_penalty=0.25,
    logit_bias={7: -3.0, 511: 2.5},
    seed=2**64 - 1,
    xtc_probability=0.25,
    xtc_threshold=0.0625,
    presence_context=7,
    frequency_context=9,
)
GRAMMAR = Grammar("lark", "start: @a", (GrammarPart("a", "regex", "x+"),), (GrammarPart("tools", "json_schema", "{}"),))
LOGPROBS = (TokenLogprobs(-0.5, ((3, -0.5), (9, -2.0))), TokenLogprobs(-1.5))


def sent(message: pb.Submit) -> pb.Submit:
    return pb.Submit.FromString(message.SerializeToString())


@pytest.mark.parametrize(
    "request_",
    [
        Request("1:a", (1, 2, 3), 4),
        Request("1:b", (1,), 4, frozenset({2, 5}), EVERY_RULE, owner="key-1"),
        Request("1:c", (1,), 4, logprobs=0),
        Request("1:d", (1,), 4, logprobs=20, grammar=GRAMMAR),
    ],
)
def test_a_request_arrives_as_it_was_sent(request_: Request) -> None:
    plain = Request("", (1,), 1, sampling=Sampling())
    assert request_from_wire(sent(request_to_wire(request_))) == request_ != plain


def test_every_rule_of_sampling_is_one_field_of_the_link() -> None:
    assert {rule.name for rule in fields(Sampling)} == set(pb.Sampling.DESCRIPTOR.fields_by_name)
    assert all(getattr(EVERY_RULE, rule.name) != getattr(Sampling(), rule.name) for rule in fields(Sampling))


@pytest.mark.parametrize("pooling", Pooling)
def test_a_prompt_to_embed_arrives_with_its_pooling(pooling: Pooling) -> None:
    arrived = embedding_from_wire(embedding_to_wire((1, 2), pooling))
    assert (arrived.prompt, arrived.pooling) == ((1, 2), pooling)


@pytest.mark.parametrize(
    "progress",
    [
        Progress("1:a", (5,)),
        Progress("1:a", (5, 6), logprobs=LOGPROBS),
        Progress("1:a", accepted=True),
        Progress("1:a", (), Finish.STOP, timing=Timing(0.25, 0.5, 2.0, 3, 1, 9), embedding=(0.5, -1.0)),
        Progress("1:a", (7,), Finish.LENGTH, timing=Timing(0.25, 0.5, 2.0, 3, 1, 9, 2), logprobs=LOGPROBS[1:]),
        *(Progress("1:a", finish=finish, error="why", field="guided_regex") for finish in Finish),
    ],
)
def test_progress_arrives_as_it_was_sent(progress: Progress) -> None:
    message = pb.Progress.FromString(progress_to_wire(progress, "1:a").SerializeToString())
    assert progress_from_wire(message) == progress


def test_every_fact_about_the_cache_arrives_as_it_was_sent() -> None:
    assert [fact.name for fact in fields(CacheFacts)] == list(pb.CacheDescription.DESCRIPTOR.fields_by_name)
    facts = CacheFacts("off by setting", *range(1, len(fields(CacheFacts))))
    message = pb.CacheDescription.FromString(cache_facts_to_wire(facts).SerializeToString())
    assert cache_facts_from_wire(message) == facts
