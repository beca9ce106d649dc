"""Who may work with whom is a matter of the protocol, not of the release."""

from __future__ import annotations

import pytest

from chorus.messages.protocol import PROTOCOL, misfit
from chorus.security.enrol import Card

PORTS = {"door_port": 1, "control_port": 2}


def test_releases_of_one_protocol_work_together() -> None:
    assert misfit("mini", PROTOCOL, "9.9.9", "1.0.0", "the coordinator") is None


@pytest.mark.parametrize(("theirs", "to_renew"), [(PROTOCOL - 1, "mini"), (PROTOCOL + 1, "the coordinator")])
def test_other_protocols_are_named_with_both_releases_and_who_is_to_be_renewed(theirs: int, to_renew: str) -> None:
    told = misfit("mini", theirs, "9.9.9", "1.0.0", "the coordinator")
    assert told
    assert f"mini runs Chorus 9.9.9 (protocol {theirs}), the coordinator 1.0.0 (protocol {PROTOCOL})" in told
    assert told.endswith(f"install a newer Chorus on {to_renew}")


@pytest.mark.parametrize("said", [{}, {"protocol": "1"}, {"protocol": None}])
def test_a_card_that_names_no_protocol_is_of_a_release_before_there_was_one(said: dict[str, object]) -> None:
    assert Card.of({**PORTS, "version": "0.0.1", **said}).protocol == 0


def test_a_card_says_its_own_protocol() -> None:
    assert Card.of({**Card(1, 2).message()}).protocol == PROTOCOL
