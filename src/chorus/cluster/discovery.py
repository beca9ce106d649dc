"""Announcing agents on the local network, and hearing of them: mDNS, with nothing in it that is secret.

An announcement is a hint where to knock, no more: what answers there must prove the token or show a certificate.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil
from zeroconf import IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from chorus import __version__

log = logging.getLogger("chorus.discovery")

SERVICE_TYPE = "_chorus._tcp.local."
_ANSWER_MS = 3000
_MAX_QUESTIONS = 256
"""How many announcements are looked up at a time: anybody on the network can announce as many as they like."""


@dataclass(frozen=True)
class Announcement:
    node_id: str
    name: str
    version: str
    cluster: str
    """The authority's fingerprint once joined, else empty."""
    tag: str
    """The public tag of the token it wants to join with, else empty."""
    addresses: tuple[str, ...]
    port: int

    def concerns(self, cluster: str, tag: str) -> bool:
        return self.cluster == cluster or (not self.cluster and self.tag == tag)


def properties(name: str, cluster: str, tag: str) -> dict[str, str]:
    return {"name": name, "version": __version__, "cluster": cluster, "tag": tag}


def parse(node_id: str, values: Mapping[bytes, bytes | None], addresses: list[str], port: int) -> Announcement:
    def text(key: str) -> str:
        return (values.get(key.encode()) or b"").decode(errors="replace")[:64]

    return Announcement(node_id, text("name"), text("version"), text("cluster"), text("tag"), tuple(addresses), port)


def own_addresses() -> list[str]:
    """Every IPv4 address of this machine that others may reach; loopback where there is no other."""
    found = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    ]
    outside = [text for text in found if not ipaddress.ip_address(text).is_loopback]
    return outside or ["127.0.0.1"]


class Announcer:
    """Tells the network about one agent until it is stopped."""

    def __init__(self, node_id: str, port: int, host: str) -> None:
        self._node_id = node_id
        self._port = port
        self._addresses = own_addresses() if host in ("", "0.0.0.0", "::") else [host]
        self._zeroconf: AsyncZeroconf | None = None
        self._info: AsyncServiceInfo | None = None

    async def tell(self, name: str, cluster: str, tag: str) -> None:
        info = AsyncServiceInfo(
            SERVICE_TYPE,
            f"{self._node_id}.{SERVICE_TYPE}",
            port=self._port,
            addresses=[socket.inet_aton(address) for address in self._addresses],
            properties=properties(name, cluster, tag),
            server=f"chorus-{self._node_id}.local.",
        )
        try:
            if self._zeroconf is None:
                self._zeroconf = AsyncZeroconf(interfaces=self._addresses, ip_version=IPVersion.V4Only)
                await self._zeroconf.async_register_service(info, cooperating_responders=True)
            else:
                await self._zeroconf.async_update_service(info)
            self._info = info
        except OSError as error:
            log.warning(
                "cannot announce this node (%s): name it with --peer %s:%d", error, self._addresses[0], self._port
            )

    async def stop(self) -> None:
        if self._zeroconf:
            await self._zeroconf.async_unregister_all_services()
            await self._zeroconf.async_close()


class Listener:
    """Calls `found` for every announcement, again whenever one changes, and `lost` with its node id once it is over."""

    def __init__(self, found: Callable[[Announcement], None], lost: Callable[[str], None]) -> None:
        self._found = found
        self._lost = lost
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()

        def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
            if state_change is ServiceStateChange.Removed:
                self._lost(name.removesuffix(f".{service_type}"))
            elif len(self._tasks) < _MAX_QUESTIONS:
                task = loop.create_task(self._ask(zeroconf, service_type, name))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        try:
            self._zeroconf = AsyncZeroconf(interfaces=own_addresses(), ip_version=IPVersion.V4Only)
        except OSError as error:
            log.warning("cannot listen for announcements (%s): name the nodes with --peer", error)
            return
        self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE_TYPE, handlers=[changed])

    async def stop(self) -> None:
        if self._browser:
            await self._browser.async_cancel()
        if self._zeroconf:
            await self._zeroconf.async_close()

    async def _ask(self, zeroconf: Zeroconf, service_type: str, name: str) -> None:
        info = AsyncServiceInfo(service_type, name)
        if not await info.async_request(zeroconf, _ANSWER_MS) or info.port is None:
            return
        node_id = name.removesuffix(f".{service_type}")
        self._found(parse(node_id, info.properties, info.parsed_addresses(IPVersion.V4Only), info.port))
