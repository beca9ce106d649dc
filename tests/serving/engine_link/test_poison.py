"""Which request is taken for the one that ends engines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chorus.messages import poison
from chorus.messages.engine import Request, Sampling
from chorus.messages.grammar import Grammar
from chorus.messages.poison import fingerprint
from chorus.serving.engine_link.poison import Case, Poison

REQUEST = Request("1:a", (1, 2, 3), max_tokens=10, sampling=Sampling(seed=5, logit_bias={7: 1.0}))


class Front:
    """Sends cases and loses engines under them, as a front end does."""

    def __init__(self) -> None:
        self.now = 0.0
        self.poison = Poison(lambda: self.now)

    def send(self, *cases: Case) -> list[Case]:
        """Who of them is sent: all ask first, as after a loss."""
        for case in cases:
            self.poison.ask(case)
        sent = []
        for case in cases:
            if self.poison.may_go(case):
                self.poison.go(case)
                self.poison.stop_asking(case)
                case.taken = True
                sent.append(case)
        return sent

    def lose(self, *cases: Case, cause: str = "fault") -> None:
        for case in cases:
            self.poison.lose(case)
        self.poison.judge(cause, "rank 0 ended with signal SEGV")


def cases(count: int) -> list[Case]:
    return [Case(replace(REQUEST, prompt=(number,))) for number in range(1, count + 1)]


def test_nobody_is_suspected_for_one_loss() -> None:
    front, both = Front(), cases(2)
    front.send(*both)
    front.lose(*both)
    assert front.send(*both) == both


@pytest.mark.parametrize("cause", ["outside", "", "something new"])
def test_nobody_is_suspected_for_what_came_from_outside(cause: str) -> None:
    front, both = Front(), cases(2)
    for _ in range(5):
        assert front.send(*both) == both
        front.lose(*both, cause=cause)


def test_who_moved_between_two_losses_is_not_suspected() -> None:
    front, (stuck, moves) = Front(), cases(2)
    for token in range(2):
        front.send(stuck, moves)
        moves.answered.append(token)
        front.lose(stuck, moves)
    assert stuck.suspected
    assert not moves.suspected


def test_who_was_not_taken_is_not_suspected() -> None:
    front, (taken, waited) = Front(), cases(2)
    for _ in range(2):
        front.send(taken, waited)
        waited.taken = False
        front.lose(taken, waited)
    assert taken.suspected
    assert not waited.suspected


def after_two_losses(front: Front, count: int) -> list[Case]:
    suspects = cases(count)
    for _ in range(2):
        front.send(*suspects)
        front.lose(*suspects, cause="memory")
    return suspects


def test_suspects_are_tried_one_at_a_time_and_the_others_wait() -> None:
    front = Front()
    first, second = after_two_losses(front, 2)
    new = Case(replace(REQUEST, prompt=(9,)))
    assert front.send(new, first, second) == [first]
    assert not front.poison.may_go(second)
    first.answered.append(1)
    front.poison.grown(first)
    assert not first.suspected
    assert not front.poison.may_go(new)
    assert front.send(second) == [second]
    front.poison.leave(second)
    assert front.send(new) == [new]


def test_who_is_tried_and_loses_the_engine_is_to_blame_and_the_others_go_on() -> None:
    front = Front()
    first, second = after_two_losses(front, 2)
    front.send(first, second)
    front.lose(first)
    assert first.verdict == "this request ended the engine 3 times: rank 0 ended with signal SEGV"
    front.poison.stop_asking(first)
    assert not second.suspected
    assert front.send(second, *cases(3)[2:])[0] is second


def test_a_trial_that_ends_from_outside_is_held_again() -> None:
    front = Front()
    (suspect,) = after_two_losses(front, 1)
    for _ in range(3):
        assert front.send(suspect) == [suspect]
        front.lose(suspect, cause="outside")
        assert not suspect.verdict
        assert suspect.suspected


def test_a_suspect_whose_client_left_holds_up_nobody() -> None:
    front = Front()
    first, second = after_two_losses(front, 2)
    assert front.send(first, second) == [first]
    front.poison.leave(first)
    assert front.poison.may_go(second)


def test_what_is_proved_is_refused_for_ten_minutes() -> None:
    front = Front()
    (suspect,) = after_two_losses(front, 1)
    front.send(suspect)
    front.lose(suspect)
    again = replace(suspect.request, id="2:b", sampling=replace(suspect.request.sampling, seed=6))
    assert front.poison.refusal(again) == suspect.verdict
    assert front.poison.refusal(REQUEST) == ""
    front.now += poison.REMEMBERED_SECONDS + 1
    assert front.poison.refusal(again) == ""


def test_no_more_is_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison, "MOST_REMEMBERED", 2)
    front, proved = Front(), cases(3)
    for case in proved:
        for _ in range(3):
            front.send(case)
            front.lose(case)
            front.poison.stop_asking(case)
    assert [bool(front.poison.refusal(case.request)) for case in proved] == [False, True, True]


def test_a_request_is_known_by_what_the_engine_computes_for_it() -> None:
    same = replace(REQUEST, id="9:z", max_tokens=99, owner="other", sampling=replace(REQUEST.sampling, seed=0))
    assert fingerprint(same) == fingerprint(REQUEST)
    others = [
        replace(REQUEST, prompt=(1, 2, 4)),
        replace(REQUEST, sampling=replace(REQUEST.sampling, temperature=1.0)),
        replace(REQUEST, sampling=replace(REQUEST.sampling, logit_bias={7: 2.0})),
        replace(REQUEST, grammar=Grammar("regex", "a+")),
    ]
    assert len({fingerprint(request) for request in (REQUEST, *others)}) == 5
