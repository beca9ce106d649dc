from __future__ import annotations

import socket

import pytest

from chorus.transport.ports import HeldPort


def test_a_held_port_is_nobody_elses_and_stays_the_same() -> None:
    held = HeldPort()
    port = held.number()
    assert held.number() == port
    with pytest.raises(OSError, match="in use"), socket.create_server(("127.0.0.1", port)):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10)
    held.release()


def test_a_port_that_was_let_go_can_be_used_at_once_and_the_next_is_another() -> None:
    held = HeldPort()
    port = held.number()
    held.release()
    with socket.create_server(("127.0.0.1", port)):
        assert held.number() != port
    held.release()
    held.release()
