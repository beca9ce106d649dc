"""Strangers at a node's door push out each other, and nobody else."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.harness import Process, cluster, free_block
from tests.e2e.hardening.members import SECONDS, card_of, dial, tls


@dataclass
class Node:
    agent: Process
    port: int
    identity: Path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The machine that made the token, with an agent of its own: it holds a certificate from the start."""
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        port = free_block()
        agent = made.chorus("studio", "join", "--listen", f"127.0.0.1:{port}", "--no-announce", "--name", "studio")
        agent.wait_for("is in the cluster")
        yield Node(agent, port, made.state / "identity")


@pytest.mark.parametrize("say", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "a byte", "half a hello"])
def test_strangers_do_not_keep_members_out(node: Node, say: bytes) -> None:
    """Finding 11."""
    with contextlib.ExitStack() as crowd:
        for _ in range(200):
            stranger = crowd.enter_context(socket.create_connection(("127.0.0.1", node.port), SECONDS))
            with contextlib.suppress(OSError):  # it may have been sent away already
                stranger.sendall(say)
        assert card_of(node.port, node.identity), node.agent.log


def test_candidates_that_prove_nothing_do_not_keep_members_out(node: Node) -> None:
    """Finding 11: these have shaken hands, and say the first bytes of a proof."""
    with contextlib.ExitStack() as crowd:
        for _ in range(100):
            with contextlib.suppress(OSError):
                candidate = crowd.enter_context(dial(node.port, tls(None, "chorus-join/1")))
                candidate.sendall(b"\x00\x00")
        assert card_of(node.port, node.identity), node.agent.log


def test_members_who_stay_are_not_pushed_out_by_strangers(node: Node) -> None:
    """Finding 11."""
    with dial(node.port, tls(node.identity, "chorus-files/1")) as member, contextlib.ExitStack() as crowd:
        for _ in range(200):
            crowd.enter_context(socket.create_connection(("127.0.0.1", node.port), SECONDS))
        assert card_of(node.port, node.identity)
        member.sendall(b'\x00\x00\x00\x0d{"probe": 99}')
        assert len(member.makefile("rb").read(99)) == 99


def test_a_message_that_comes_byte_by_byte_has_no_more_time_than_another() -> None:
    """Finding 11: the timeout was that of each byte."""
    from chorus.security import handshake

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.5)
        message = b'\x00\x00\x00\x0b{"a": "bc"}'
        slowly = threading.Event()

        def drip() -> None:
            for byte in message:
                with contextlib.suppress(OSError):
                    theirs.sendall(bytes([byte]))
                slowly.wait(0.2)

        threading.Thread(target=drip, daemon=True).start()
        with pytest.raises(TimeoutError):
            handshake.receive(ours)


def test_a_stranger_without_a_certificate_gets_no_card(node: Node) -> None:
    """It holds a stranger's place, and only until it has been asked for a certificate."""
    with dial(node.port, tls(None, "chorus-card/1")) as connection:
        try:
            assert connection.recv(1) == b""
        except OSError:
            return
