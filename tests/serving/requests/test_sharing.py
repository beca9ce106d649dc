"""Who shares what is kept, told without naming anybody."""

from __future__ import annotations

from chorus.serving.requests.sharing import conversation_of, scope_of


def test_without_a_salt_and_a_scope_of_ones_own_everybody_shares() -> None:
    assert scope_of("", "") == ""


def test_every_salt_and_every_owner_is_a_scope_of_its_own() -> None:
    scopes = {scope_of(salt, owner) for salt in ("", "a", "a\0b") for owner in ("", "a", "b")}
    assert len(scopes) == 9


def test_a_name_means_another_conversation_to_another_owner() -> None:
    assert conversation_of("", "a") == ""
    assert conversation_of("x", "a") == conversation_of("x", "a") != conversation_of("x", "b")


def test_nothing_that_was_sent_can_be_read_from_it() -> None:
    told = scope_of("secret \ud800", "team") + conversation_of("secret", "team")
    assert "secret" not in told
    assert "team" not in told
    assert len(told) == 64
