from __future__ import annotations

import socket

from tests.support.ports import is_free, listening_ports, outside, picked_by_kernel, port_block, share


def test_ports_are_those_that_the_kernel_does_not_pick() -> None:
    assert outside((32768, 60999)) == range(16768, 32768)
    assert outside((1024, 40000)) == range(40001, 65536)
    low, high = picked_by_kernel()
    assert not any(low <= port <= high for port in listening_ports(20))


def test_workers_share_no_port() -> None:
    shares = [share(range(100, 200), worker, 3) for worker in range(3)]
    assert len({port for part in shares for port in part}) == sum(map(len, shares)) == 99


def test_no_port_is_given_twice() -> None:
    ports = listening_ports(200)
    assert len(set(ports)) == 200


def test_a_port_in_use_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert not is_free(taken.getsockname()[1])
    assert is_free(listening_ports(1)[0])


def test_a_block_is_free_from_end_to_end() -> None:
    first = port_block(4)
    for port in range(first, first + 4):
        socket.create_server(("127.0.0.1", port)).close()
