"""Tokens, certificates and the join protocol, without processes."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from chorus.cluster.agent.door import AgentDoor
from chorus.cluster.agent.process import PROTOCOLS
from chorus.cluster.transfer.share import FILES, FileServer
from chorus.security import enrol, handshake
from chorus.security.authority import Authority, NoAuthority
from chorus.security.expelled import BadList
from chorus.security.guard import MemberGuard
from chorus.security.identity import (
    Identity,
    fingerprint,
    make_key,
    make_request,
    member_of,
    stranger_client_context,
    stranger_server_context,
)
from chorus.security.meet import connect, meet
from chorus.security.member import COORDINATOR, NODE, NotTrusted
from chorus.security.names import server_name
from chorus.security.token import BadToken, Token


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority")


def test_a_token_has_at_least_128_bits_and_survives_being_written_down() -> None:
    token = Token.new()
    assert len(token.secret) * 8 >= 128
    assert Token.parse(f"  {token.text.upper()}\n") == token
    assert token.secret.hex() not in repr(token)


def test_a_mistyped_token_is_told_apart_from_a_wrong_one() -> None:
    text = Token.new().text
    typo = text[:12] + ("a" if text[12] != "a" else "b") + text[13:]
    with pytest.raises(BadToken, match="mistyped"):
        Token.parse(typo)


def test_a_token_of_localai_is_refused_by_name() -> None:
    theirs = base64.b64encode(b"otp:\n  dht:\n    interval: 360\n  key: x\nroom: y\nrendezvous: z\n").decode()
    with pytest.raises(BadToken, match=r"LocalAI's own p2p.*chorus token new"):
        Token.parse(theirs)


def test_nothing_public_gives_the_token_away(authority: Authority) -> None:
    token = authority.token
    assert token.tag not in token.text
    assert token.secret not in token.key
    assert token.secret.hex()[:8] not in token.tag


def test_secrets_are_readable_by_their_owner_only(authority: Authority, tmp_path: Path) -> None:
    authority.issue(tmp_path / "identity", "mini", NODE)
    for file in (*authority.folder.iterdir(), *(tmp_path / "identity").iterdir()):
        if file.name in ("ca.key", "token", "key.pem"):
            assert file.stat().st_mode & 0o077 == 0, file


def test_a_second_cluster_does_not_replace_the_first(authority: Authority) -> None:
    with pytest.raises(NoAuthority, match="already holds a cluster"):
        Authority.create(authority.folder)


def test_a_certificate_says_only_what_the_authority_decided(authority: Authority) -> None:
    """A node that asks to be a coordinator is still a node."""
    key = make_key()
    member = member_of(authority.sign(make_request(key, "coordinator"), "mini"))
    assert (member.name, member.node_id, member.role) == ("mini", fingerprint(key.public_key()), NODE)


@pytest.mark.parametrize("name", ["", "../up", "a/b", "x" * 64, "a b", ".hidden"])
def test_names_that_could_be_paths_get_no_certificate(authority: Authority, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        authority.sign(make_request(make_key(), "x"), name)


def test_an_expelled_node_is_refused_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    mine = authority.issue(tmp_path / "me", "studio", COORDINATOR)
    theirs = authority.issue(tmp_path / "them", "mini", NODE)
    assert mine.check(theirs.certificate).name == "mini"
    assert len(authority.expel("mini")) == 1
    mine.update_expelled(authority.expelled_list())
    with pytest.raises(NotTrusted, match="expelled"):
        mine.check(theirs.certificate)


def test_a_list_of_expelled_nodes_is_the_authoritys_or_none_at_all(authority: Authority, tmp_path: Path) -> None:
    mine = authority.issue(tmp_path / "me", "studio", COORDINATOR)
    authority.issue(tmp_path / "one", "one", NODE)
    authority.issue(tmp_path / "two", "two", NODE)
    authority.expel("one")
    first = authority.expelled_list()
    authority.expel("two")
    mine.update_expelled(authority.expelled_list())
    mine.update_expelled(first)
    assert len(mine.expelled()) == 2, "an earlier list changes nothing"
    forged = json.dumps({**json.loads(first), "number": 3, "ids": []})
    with pytest.raises(BadList):
        mine.update_expelled(forged)
    assert len(mine.expelled()) == 2


def test_an_expelled_key_gets_no_other_certificate(authority: Authority, tmp_path: Path) -> None:
    """Under no name, and with no token."""
    authority.issue(tmp_path / "them", "mini", NODE)
    authority.expel("mini")
    with listener(authority, tmp_path) as (address, _), pytest.raises((handshake.JoinRefused, OSError)):
        enrol.dial_as_candidate(address, authority.token, tmp_path / "them", "other")


def test_what_is_under_way_with_a_node_ends_when_it_is_expelled(authority: Authority, tmp_path: Path) -> None:
    """A call at a rank, and a line to a door, at both ends."""
    mine = authority.issue(tmp_path / "me", "studio", NODE)
    theirs = authority.issue(tmp_path / "them", "mini", NODE)

    def wait(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        over = threading.Event()
        context.add_callback(over.set)
        yield b"begun"
        over.wait(60)

    method = grpc.unary_stream_rpc_method_handler(wait)
    server = grpc.server(ThreadPoolExecutor(2), interceptors=(MemberGuard(mine, ()),))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x.X", {"Wait": method}),))
    port = server.add_secure_port("127.0.0.1:0", mine.server_credentials())
    server.start()
    options = [("grpc.ssl_target_name_override", server_name(mine.member.node_id))]
    files = FileServer()
    with (
        contextlib.closing(AgentDoor("127.0.0.1", 0)) as door,
        grpc.secure_channel(f"127.0.0.1:{port}", theirs.channel_credentials(), options) as channel,
    ):
        door.set(mine.server_context(PROTOCOLS), mine, None, {FILES: files.serve})
        door.start()
        answers = channel.unary_stream("/x.X/Wait")(b"", timeout=60)
        assert next(answers) == b"begun"
        with meet(("127.0.0.1", door.port), theirs, FILES, 60, mine.member.node_id) as (line, _):
            handshake.send(line, {"probe": 1})
            assert line.recv(1) == b"\0"
            authority.expel("mini")
            mine.update_expelled(authority.expelled_list())
            assert line.recv(1) == b""
        with pytest.raises(grpc.RpcError):
            next(answers)
    server.stop(0)


def test_another_member_than_the_expected_one_is_refused(authority: Authority, tmp_path: Path) -> None:
    mine = authority.issue(tmp_path / "me", "studio", NODE)
    theirs = authority.issue(tmp_path / "them", "mini", NODE)
    with contextlib.closing(AgentDoor("127.0.0.1", 0)) as door:
        door.set(theirs.server_context(PROTOCOLS), theirs, None, {})
        door.start()
        unlike = "0" * 32
        with pytest.raises(ssl.SSLCertVerificationError), meet(("127.0.0.1", door.port), mine, FILES, 10, unlike):
            pass


def test_whoever_knows_the_token_cannot_pose_as_its_authority(authority: Authority, tmp_path: Path) -> None:
    """The token names the authority's key; the older form of a token does not, and is good for joining all the same."""
    token = authority.token
    assert Token.parse(token.text) == token
    impostor = Authority.create(tmp_path / "impostor")
    (impostor.folder / "token").write_text(token.text)
    refused = pytest.raises(handshake.JoinRefused, match="poses as it")
    with listener(impostor, tmp_path) as (address, _), refused:
        enrol.dial_as_candidate(address, token, tmp_path / "identity", "mini")
    assert Identity.find(tmp_path / "identity") is None
    nameless = Token.parse(Token(token.secret).text)
    assert (nameless.authority, nameless.tag) == ("", token.tag)


def test_an_impostor_with_the_true_authoritys_certificate_signs_nothing_of_worth(
    authority: Authority, tmp_path: Path
) -> None:
    impostor = Authority.create(tmp_path / "impostor")
    (impostor.folder / "token").write_text(authority.token.text)
    impostor.certificate = authority.certificate
    refused = pytest.raises(handshake.JoinRefused, match="not signed")
    with listener(authority, tmp_path, answering=impostor) as (address, _), refused:
        enrol.dial_as_candidate(address, authority.token, tmp_path / "identity", "mini")


def test_a_certificate_is_due_after_a_third_of_its_life(authority: Authority, tmp_path: Path) -> None:
    fresh = authority.issue(tmp_path / "fresh", "mini", NODE)
    assert not fresh.is_due("mini")
    assert fresh.is_due("another name")
    # It began a day ago, for the sake of clocks that are behind.
    aged = authority.issue(tmp_path / "aged", "mini", NODE, life=datetime.timedelta(days=2))
    assert aged.is_due("mini")
    assert not aged.ran_out
    authority.keep(aged)
    assert not aged.is_due("mini")
    over = authority.issue(tmp_path / "over", "mini", NODE, life=datetime.timedelta(hours=1))
    assert over.ran_out
    assert Identity.find(tmp_path / "over") is None


def test_a_rotated_token_opens_nothing(authority: Authority, tmp_path: Path) -> None:
    old = authority.token
    authority.rotate()
    with listener(authority, tmp_path) as (address, _), pytest.raises((handshake.JoinRefused, OSError)):
        enrol.dial_as_candidate(address, old, tmp_path / "identity", "mini")


def test_the_right_token_gives_a_certificate_of_this_cluster(authority: Authority, tmp_path: Path) -> None:
    with listener(authority, tmp_path) as (address, _):
        identity = enrol.dial_as_candidate(address, authority.token, tmp_path / "identity", "mini")
    assert identity.member.name == "mini"
    assert identity.authority == authority.certificate_pem
    assert Identity.find(tmp_path / "identity") is not None


def test_a_wrong_token_learns_nothing_and_leaves_nothing(authority: Authority, tmp_path: Path) -> None:
    refused = pytest.raises((handshake.JoinRefused, OSError))
    with listener(authority, tmp_path) as (address, failures), refused as caught:
        enrol.dial_as_candidate(address, Token.new(), tmp_path / "identity", "mini")
    assert "wrong token" not in str(caught.value)
    assert [str(failure) for failure in failures] == ["wrong token"]
    assert Identity.find(tmp_path / "identity") is None
    assert not authority.issued()


def test_a_replayed_join_is_refused(authority: Authority, tmp_path: Path) -> None:
    """Everything a successful candidate sent, sent again on another connection."""
    sent: list[bytes] = []
    with listener(authority, tmp_path) as (address, _), connected(address) as connection:
        handshake.dial(_recording(connection, sent), authority.token.key)
    assert len(sent) == 2
    with listener(authority, tmp_path) as (address, failures), connected(address) as connection:
        for frame in sent:
            connection.sendall(frame)
        handshake.receive(connection)  # its fresh nonce, which the replay could not know
        with pytest.raises((handshake.JoinRefused, OSError)):
            handshake.receive(connection)
    assert [str(failure) for failure in failures] == ["wrong token"]


def test_somebody_in_the_middle_breaks_both_proofs(authority: Authority, tmp_path: Path) -> None:
    """A relay must show its own certificate, and the proofs cover the certificate."""
    with listener(authority, tmp_path) as (address, failures):

        def relay(candidate: ssl.SSLSocket) -> None:
            with connected(address) as onwards:
                handshake.send(onwards, handshake.receive(candidate))
                handshake.send(candidate, handshake.receive(onwards))
                handshake.send(onwards, handshake.receive(candidate))
                handshake.send(candidate, handshake.receive(onwards))

        context = stranger_server_context(tmp_path / "middle", PROTOCOLS)
        refused = pytest.raises((handshake.JoinRefused, OSError))
        with serving(context, relay) as (middle, _), refused:
            enrol.dial_as_candidate(middle, authority.token, tmp_path / "identity", "mini")
    assert [str(failure) for failure in failures] == ["wrong token"]


@contextlib.contextmanager
def listener(
    authority: Authority, folder: Path, answering: Authority | None = None
) -> Iterator[tuple[tuple[str, int], list[Exception]]]:
    """An authority that answers joins, and what it refused; perhaps another than the one it shows."""
    own = authority.issue(folder / "listener", "studio", NODE)
    certificate = ssl.PEM_cert_to_DER_cert(own.certificate.decode())
    authority.folder.joinpath("issued.jsonl").unlink()

    def answer(connection: ssl.SSLSocket) -> None:
        handshake.answer(connection, certificate, {"token": authority.token.key})
        enrol.admit(connection, answering or authority)

    with serving(own.server_context(PROTOCOLS), answer) as found:
        yield found


@contextlib.contextmanager
def serving(
    context: ssl.SSLContext, handle: Callable[[ssl.SSLSocket], None]
) -> Iterator[tuple[tuple[str, int], list[Exception]]]:
    failures: list[Exception] = []
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(60)

    def run() -> None:
        plain, _ = server.accept()
        plain.settimeout(60)
        with contextlib.closing(context.wrap_socket(plain, server_side=True)) as connection:
            try:
                handle(connection)
            except (handshake.JoinRefused, OSError) as error:
                failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[:2], failures
    finally:
        thread.join(70)
        server.close()


def connected(address: tuple[str, int]) -> ssl.SSLSocket:
    return connect(address, stranger_client_context([handshake.PROTOCOL]), 60)


def _recording(connection: ssl.SSLSocket, sent: list[bytes]) -> ssl.SSLSocket:
    original = connection.sendall

    def sendall(data: bytes, flags: int = 0) -> None:
        sent.append(bytes(data))
        original(data, flags)

    connection.sendall = sendall  # type: ignore[method-assign]
    return connection
