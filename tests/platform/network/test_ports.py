"""Probes of ports under the rules of BSD, where SO_REUSEADDR lets a bind succeed beside somebody who listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from chorus.deploy.nodes.meeting import _free_door
from chorus.deploy.ssh.probe import port_is_free
from tests.support.ports import listening_port


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port that somebody listens on, at 127.0.0.1 alone, while every bind to all addresses succeeds."""
    real = socket.socket.bind
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def bind(self: socket.socket, address: tuple[str, int]) -> None:
            real(self, (address[0], 0) if address[1] == port else address)

        monkeypatch.setattr(socket.socket, "bind", bind)
        yield port


def test_a_port_that_is_taken_on_one_address_is_not_free(taken: int) -> None:
    assert not port_is_free(taken)
    assert _free_door("0.0.0.0", taken) == 0


def test_a_free_port_is_free() -> None:
    port = listening_port()
    assert port_is_free(port)
    assert _free_door("127.0.0.1", port) == port
    assert _free_door("127.0.0.1", 0) == 0, "any port is the system's to choose: the next one may be taken"
