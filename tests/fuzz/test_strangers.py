"""What a machine hears from others before it trusts them: tokens, announcements, cards, the frames of a join."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorus.cluster import discovery
from chorus.security import handshake
from chorus.security.authority import Authority
from chorus.security.enrol import Card
from chorus.security.expelled import BadList, Expelled
from chorus.security.handshake import JoinRefused
from chorus.security.token import BadToken, Token
from tests.fuzz.foreign import texts, values

alphabet = st.text(st.sampled_from("chorus12-abcdefgz234567=ßéİſ \0\n"), max_size=80)


@given(
    texts
    | alphabet
    | alphabet.map("chorus1-{}".format)
    | alphabet.map("chorus2-{}".format)
    | st.binary(max_size=30).map(lambda raw: raw.hex())
)
def test_a_token_is_read_or_refused(text: str) -> None:
    with suppress(BadToken):
        Token.parse(text)


@given(st.integers(0, 100), st.characters(), st.booleans())
def test_a_token_with_another_letter_is_refused_or_the_same(at: int, letter: str, named: bool) -> None:
    token = Token.new().naming("00112233445566778899aabbccddeeff" if named else "")
    text = token.text
    changed = text[: at % len(text)] + letter + text[at % len(text) + 1 :]
    with suppress(BadToken):
        assert Token.parse(changed) == token


@given(
    st.text(max_size=80),
    st.dictionaries(
        st.sampled_from([b"name", b"version", b"cluster", b"tag", b"x"]), st.none() | st.binary(max_size=300)
    ),
    st.lists(st.text(max_size=40), max_size=3),
)
def test_an_announcement_of_any_bytes_is_a_short_hint(
    node_id: str, properties: dict[bytes, bytes | None], addresses: list[str]
) -> None:
    heard = discovery.parse(node_id, properties, addresses, 5)
    assert all(len(text) <= 64 for text in (heard.name, heard.version, heard.cluster, heard.tag))


fields = ("door_port", "control_port", "version", "expelled")


@given(st.dictionaries(st.sampled_from(fields), values) | st.fixed_dictionaries(dict.fromkeys(fields, values)))
def test_a_card_of_any_values_is_read_or_refused(message: dict[str, Any]) -> None:
    # As it comes off the wire.
    with suppress(JoinRefused):
        Card.of(json.loads(json.dumps(message)))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("cluster") / "authority")


@given(texts | st.fixed_dictionaries(dict.fromkeys(("number", "ids", "signature"), values)).map(json.dumps))
def test_a_list_of_expelled_nodes_of_any_values_is_refused(authority: Authority, text: str) -> None:
    with suppress(BadList):
        assert Expelled.read(text, authority.certificate) == Expelled(), "nobody has signed it"


def received(raw: bytes) -> None:
    """What the other end makes of these bytes before its peer hangs up."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(60)
        ours.sendall(raw)
        ours.shutdown(socket.SHUT_WR)
        with suppress(JoinRefused, OSError):
            handshake.receive(theirs)  # type: ignore[arg-type]


@given(
    st.binary(max_size=100) | values.map(lambda value: json.dumps(value).encode()),
    st.none() | st.integers(0, 2**32 - 1),
)
def test_a_frame_of_a_join_is_read_or_refused(content: bytes, claimed: int | None) -> None:
    received(struct.pack(">I", len(content) if claimed is None else claimed) + content)


@pytest.mark.parametrize("content", [b"[" * 60_000, b'{"a":' * 10_000, b"9" * 60_000, b"\xff" * 100, b'"\\ud800"'])
def test_a_hostile_frame_of_a_join_is_refused(content: bytes) -> None:
    received(struct.pack(">I", len(content)) + content)
