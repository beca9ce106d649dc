"""What is announced follows the addresses of the machine."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from chorus.cluster import discovery
from chorus.cluster.discovery import Announcer, Listener
from tests.support.interfaces import play

SECONDS = 60.0


class Network:
    """In place of multicast: which addresses are announced now, and on which somebody listens."""

    def __init__(self) -> None:
        self.announced: list[str] = []
        self.heard_on: list[str] = []
        self.zeroconf = self

    def open(self, interfaces: list[str], **_: Any) -> Network:
        self.heard_on = interfaces
        return self

    async def async_register_service(self, info: Any, **_: Any) -> None:
        self.announced = [socket.inet_ntoa(packed) for packed in info.addresses]

    async_update_service = async_register_service

    async def async_unregister_all_services(self) -> None:
        self.announced = []

    async def async_close(self) -> None:
        self.heard_on = []

    async def async_cancel(self) -> None: ...


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(discovery, "AsyncZeroconf", made.open)
    monkeypatch.setattr(discovery, "AsyncServiceBrowser", lambda *_, **__: made)
    monkeypatch.setattr(discovery, "ADDRESS_SECONDS", 0.01, raising=False)
    return made


async def _soon(check: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not check():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def test_an_agent_that_started_before_its_network_is_announced_as_soon_as_it_is_up(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, {"lo": "127.0.0.1"})

    async def run() -> None:
        announcer = Announcer("id", 50150, "0.0.0.0")
        await announcer.tell("mini", "", "tag")
        assert network.announced == ["127.0.0.1"]
        play(monkeypatch, {"lo": "127.0.0.1", "eth0": "192.168.1.5"})
        assert await _soon(lambda: network.announced == ["192.168.1.5"]), network.announced
        play(monkeypatch, {"lo": "127.0.0.1", "eth0": "192.168.1.5", "thunderbolt0": "169.254.3.4"})
        assert await _soon(lambda: set(network.announced) == {"192.168.1.5", "169.254.3.4"}), network.announced
        await announcer.stop()
        assert network.announced == []

    asyncio.run(run())


def test_a_coordinator_listens_on_a_cable_that_is_plugged_in_later(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, {"lo": "127.0.0.1"})

    async def run() -> None:
        listener = Listener(lambda _: None, lambda _: None)
        await listener.start()
        play(monkeypatch, {"lo": "127.0.0.1", "eth0": "192.168.1.5"})
        assert await _soon(lambda: network.heard_on == ["192.168.1.5"]), network.heard_on
        await listener.stop()

    asyncio.run(run())
