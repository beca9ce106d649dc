"""Announcing agents on the local network, and hearing of them: mDNS, with nothing in it that is secret.

An announcement is a hint where to knock, no more: what answers there must prove the token or show a certificate.
Networks come up late and cables are plugged in: both sides follow the addresses of their machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from zeroconf import IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from chorus import __version__
from chorus.platform.network import links
from chorus.platform.network.links import Address

log = logging.getLogger("chorus.discovery")

SERVICE_TYPE = "_chorus._tcp.local."
ADDRESS_SECONDS = 1.0
"""How often the addresses of this machine are looked at."""
ANYWHERE = ("", "0.0.0.0", "::")
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


def own_addresses(host: str = "") -> tuple[Address, ...]:
    """Where others may reach what listens on `host` of this machine, the quickest links first."""
    found = links.addresses()
    if host in ANYWHERE:
        return found
    return tuple(address for address in found if address.ip == host) or (Address(host),)


async def address_changes(host: str, known: tuple[Address, ...]) -> AsyncIterator[tuple[Address, ...]]:
    """The addresses, whenever they are others than were known before."""
    seen = None
    while True:
        if (plugged := links.plugged()) != seen:
            seen, found = plugged, await asyncio.to_thread(own_addresses, host)
            if found != known:
                known = found
                yield found
        await asyncio.sleep(ADDRESS_SECONDS)


def _ips(addresses: tuple[Address, ...]) -> list[str]:
    return list(dict.fromkeys(address.ip for address in addresses))


class Announcer:
    """Tells the network about one agent until it is stopped, and tells it anew when the machine's addresses change."""

    def __init__(self, node_id: str, port: int, host: str) -> None:
        self._node_id = node_id
        self._port = port
        self._host = host
        self._addresses = own_addresses(host)
        self._zeroconf: AsyncZeroconf | None = None
        self._properties: dict[str, str] = {}
        self._telling = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    async def tell(self, name: str, cluster: str, tag: str) -> None:
        self._properties = properties(name, cluster, tag)
        await self._announce(moved=False)
        self._following = self._following or asyncio.create_task(self._follow())

    async def stop(self) -> None:
        await _end(self._following)
        if self._zeroconf:
            await self._zeroconf.async_unregister_all_services()
            await self._zeroconf.async_close()

    async def _follow(self) -> None:
        async for found in address_changes(self._host, self._addresses):
            self._addresses = found
            log.info("this node's addresses are now %s", ", ".join(_ips(found)))
            await self._announce(moved=True)

    async def _announce(self, moved: bool) -> None:
        ips = _ips(self._addresses)
        info = AsyncServiceInfo(
            SERVICE_TYPE,
            f"{self._node_id}.{SERVICE_TYPE}",
            port=self._port,
            addresses=[socket.inet_aton(ip) for ip in ips],
            properties=self._properties,
            server=f"chorus-{self._node_id}.local.",
        )
        async with self._telling:
            try:
                if self._zeroconf and moved:
                    # Its sockets belong to addresses that may be gone.
                    await self._zeroconf.async_close()
                    self._zeroconf = None
                if self._zeroconf is None:
                    self._zeroconf = AsyncZeroconf(interfaces=ips, ip_version=IPVersion.V4Only)
                    await self._zeroconf.async_register_service(info, cooperating_responders=True)
                else:
                    await self._zeroconf.async_update_service(info)
            except OSError as error:
                log.warning("cannot announce this node (%s): name it with --peer %s:%d", error, ips[0], self._port)


class Listener:
    """Calls `found` for every announcement, again whenever one changes, and `lost` with its node id once it is over."""

    def __init__(self, found: Callable[[Announcement], None], lost: Callable[[str], None]) -> None:
        self._found = found
        self._lost = lost
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        addresses = own_addresses()
        self._open(addresses)
        self._following = asyncio.create_task(self._follow(addresses))

    async def stop(self) -> None:
        await _end(self._following)
        await self._close()

    async def _follow(self, known: tuple[Address, ...]) -> None:
        async for addresses in address_changes("", known):
            await self._close()
            self._open(addresses)

    def _open(self, addresses: tuple[Address, ...]) -> None:
        try:
            self._zeroconf = AsyncZeroconf(interfaces=_ips(addresses), ip_version=IPVersion.V4Only)
        except OSError as error:
            log.warning("cannot listen for announcements (%s): name the nodes with --peer", error)
            return
        self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE_TYPE, handlers=[self._changed])

    async def _close(self) -> None:
        if self._browser:
            await self._browser.async_cancel()
        if self._zeroconf:
            await self._zeroconf.async_close()
        self._browser = self._zeroconf = None

    def _changed(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is ServiceStateChange.Removed:
            self._lost(name.removesuffix(f".{service_type}"))
        elif len(self._tasks) < _MAX_QUESTIONS:
            task = asyncio.get_running_loop().create_task(self._ask(zeroconf, service_type, name))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, zeroconf: Zeroconf, service_type: str, name: str) -> None:
        info = AsyncServiceInfo(service_type, name)
        if not await info.async_request(zeroconf, _ANSWER_MS) or info.port is None:
            return
        node_id = name.removesuffix(f".{service_type}")
        self._found(parse(node_id, info.properties, info.parsed_addresses(IPVersion.V4Only), info.port))


async def _end(task: asyncio.Task[None] | None) -> None:
    if task:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
