from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from chorus.bench.client import EndpointFailed
from chorus.bench.figures import Answer
from chorus.bench.measure import Case, Measuring, Results, Workload


class Counting:
    """Answers at once, counts two tokens a word and thirty for a template, and keeps what it was asked."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self._fail_at = fail_at

    async def answer(self, body: dict[str, Any], zero: float) -> tuple[Answer, str]:
        self.asked.append(body)
        if len(self.asked) == self._fail_at:
            raise EndpointFailed("enough")
        words = sum(len(message["content"].split()) for message in body.get("messages", [])) or len(
            body["prompt"].split()
        )
        await asyncio.sleep(0)
        return Answer(0.0, (1.0, 2.0), 2.0, 30 + 2 * words, body["max_tokens"], 0), f"answer {len(self.asked)}"

    @property
    def first_words(self) -> list[str]:
        return [(body.get("prompt") or body["messages"][0]["content"]).split()[0] for body in self.asked]


def measured(workload: Workload, client: Counting) -> Results:
    results = Results("m")
    asyncio.run(Measuring(client, workload, "m", lambda _what: None).run(results))
    return results


def test_streams_have_prompts_of_their_own_of_the_length_asked_for() -> None:
    client = Counting()
    results = measured(Workload((Case(1, 1000), Case(4, 100)), tokens=8, rounds=2), client)
    assert results.complete
    assert [[len(each.answers) for each in case.rounds] for case in results.cases] == [[1, 1], [4, 4]]
    lengths = [answer.prompt_tokens for case in results.cases for each in case.rounds for answer in each.answers]
    assert lengths == [1000] * 2 + [100] * 8
    assert len(set(client.first_words)) == len(client.asked)


def test_all_prompts_begin_with_what_they_share_once_it_is_known_how_long_that_is() -> None:
    client = Counting()
    results = measured(Workload((Case(2, 100),), tokens=8, rounds=2, shared_prefix=200, completions=True), client)
    assert len(set(client.first_words[2:])) == 1
    assert len({body["prompt"] for body in client.asked}) == len(client.asked)
    assert {answer.prompt_tokens for answer in results.cases[0].rounds[0].answers} == {300}


def test_agents_send_their_whole_history_with_every_turn() -> None:
    client = Counting()
    results = measured(Workload((Case(2, 100, turns=3),), tokens=8, rounds=1), client)
    assert len(results.cases[0].rounds[0].answers) == 6
    *_, last = client.asked
    assert [message["role"] for message in last["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    own = [body for body in client.asked if body["messages"][0] == last["messages"][0]]
    assert [len(body["messages"]) for body in own] == [1, 3, 5]
    assert all(longer["messages"][: len(each["messages"])] == each["messages"] for each, longer in pairwise(own))


def test_what_was_measured_before_an_error_is_kept() -> None:
    results = Results("m")
    workload = Workload((Case(2, 100),), tokens=8, rounds=5)
    # Two lengths, a warm-up of two and a round of two come before.
    measuring = Measuring(Counting(fail_at=8), workload, "m", lambda _what: None)
    with pytest.raises(EndpointFailed, match="enough"):
        asyncio.run(measuring.run(results))
    assert ([len(case.rounds) for case in results.cases], results.complete) == ([1], False)
