"""Who may talk to whom is said with every channel and server: a process may be several nodes at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from chorus.security.authority import Authority
from chorus.security.identity import Identity
from chorus.security.member import COORDINATOR, NODE
from chorus.security.names import member_address
from chorus.transport.channel import NotPrivate, open_channel, open_server
from chorus.transport.grpc_link import FrameSender, tensor_service
from chorus.transport.links import Inbox, LinkLost
from chorus.transport.security import Security


@contextlib.contextmanager
def listening(identity: Identity) -> Iterator[tuple[str, Inbox]]:
    inbox = Inbox()
    server, place = open_server("127.0.0.1:0", 4, Security(identity))
    server.add_generic_rpc_handlers((tensor_service(inbox, 60),))
    server.start()
    host, _, port = place.rpartition(":")
    try:
        yield member_address(identity.member.node_id, host, int(port)), inbox
    finally:
        server.stop(0).wait(60)


def test_two_clusters_in_one_process_do_not_mix(tmp_path: Path) -> None:
    home, away = (Authority.create(tmp_path / name) for name in ("home", "away"))
    node = home.issue(tmp_path / "node", "mini", NODE)
    known = home.issue(tmp_path / "known", "studio", COORDINATOR)
    stranger = away.issue(tmp_path / "stranger", "studio", COORDINATOR)
    other = away.issue(tmp_path / "other", "mini", NODE)
    with listening(node) as (here, inbox), listening(other) as (there, other_inbox):
        senders = [
            FrameSender(here, 60, Security(known)),
            FrameSender(there, 60, Security(stranger)),
            FrameSender(here, 60, Security(stranger)),
        ]
        try:
            for step, sender in enumerate(senders, 1):
                sender.send_arrays(step, [mx.array([step])])
            assert inbox.take(1, 60).arrays()[0].item() == 1
            assert other_inbox.take(2, 60).arrays()[0].item() == 2
            with pytest.raises(LinkLost):
                inbox.take(3, 1)
        finally:
            for sender in senders:
                sender.close()


def test_nothing_is_open_to_others_unless_it_was_asked_for() -> None:
    with pytest.raises(NotPrivate, match="`chorus join` has TLS"):
        open_server("0.0.0.0:0", 1)
    with pytest.raises(NotPrivate):
        open_channel("192.0.2.1:5000")
    open_channel("192.0.2.1:5000", Security(plaintext=True)).close()


def test_a_socket_whose_path_some_system_refuses_is_refused_on_every_system() -> None:
    path = f"/tmp/{'x' * 100}"
    with pytest.raises(
        OSError, match="has 105 bytes, and not every system takes more than 103: choose a shorter folder"
    ):
        open_server(f"unix:{path}", 1)
