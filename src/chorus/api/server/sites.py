"""Keeps the web pages of others away from a server that asks for no key: a browser would call it for any of them.

A page elsewhere can send simple requests here by itself, and by giving its own name our address (DNS rebinding) it can
read the answers too. The first is told by Origin and Sec-Fetch-Site, the second by Host.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Collection
from urllib.parse import urlsplit

import psutil
from starlette.datastructures import Headers
from starlette.types import Scope

from chorus.api.errors import ApiError
from chorus.api.server.gate import Record

ANY = "*"
# A link or a bookmark elsewhere may lead here, since a page cannot read where it leads.
_PAGES = frozenset({"/"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(?::(\d{1,5}))?")
_LOOK_SECONDS = 5.0
"""How old what is known of this machine's addresses may be."""
_USUAL_PORTS = {"http": 80, "https": 443}

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_host(header: str) -> tuple[str, int | None] | None:
    """Name or address without brackets or final dot, and the port; None where it is neither."""
    found = _HOST.fullmatch(header.strip().lower())
    return found and (found[1].strip("[]").removesuffix("."), int(found[2]) if found[2] else None)


class OwnNames:
    """Every name that this machine is called by, and every address it has."""

    def __init__(self, more: Collection[str]) -> None:
        own = socket.gethostname().lower()
        short = own.partition(".")[0]
        self._any = ANY in more
        self._names = {"localhost", "host.docker.internal", own, short, f"{short}.local", *map(str.lower, more)}
        self._addresses: frozenset[Address] = frozenset()
        self._looked = float("-inf")

    def has(self, host: str) -> bool:
        if self._any or host in self._names or host.endswith(".localhost"):
            return True
        address = _address(host)
        if address is None:
            return False
        return address.is_loopback or address.is_unspecified or address in self._own_addresses()

    def _own_addresses(self) -> frozenset[Address]:
        """Looked up when asked for: they change."""
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            found = (_address(entry.address) for entries in psutil.net_if_addrs().values() for entry in entries)
            self._addresses = frozenset(address for address in found if address)
        return self._addresses


def _address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def is_foreign(method: str, path: str, headers: Headers, origins: Collection[str]) -> bool:
    """Whether a page of another site sent this; what is no browser says nothing of sites, and may be anybody."""
    origin = headers.get("origin")
    if ANY in origins or origin in origins:
        return False
    if origin is not None:
        return not _same_place(origin, headers.get("host", ""))
    if headers.get("sec-fetch-site") != "cross-site":
        return False
    return not (method == "GET" and headers.get("sec-fetch-mode") == "navigate" and path in _PAGES)


def _same_place(origin: str, host: str) -> bool:
    try:
        site = urlsplit(origin)
        named, usual = parse_host(host), _USUAL_PORTS[site.scheme]
        return named is not None and (site.hostname, site.port or usual) == (named[0], named[1] or usual)
    except (ValueError, KeyError):
        return False


class SiteGuard:
    """Lets pass what no page of another site sent, and what is meant for this server; whoever passes may do all."""

    def __init__(self, hosts: Collection[str], origins: Collection[str]) -> None:
        self._names = OwnNames(hosts)
        self._origins = frozenset(origins)

    def admit(self, scope: Scope, record: Record) -> None:
        headers = Headers(scope=scope)
        # HTTP/1.0 needs none; a browser always sends one.
        if (host := headers.get("host")) is not None:
            parsed = parse_host(host)
            if parsed is None or not self._names.has(parsed[0]):
                name = host[:100] if parsed is None else parsed[0][:100]
                raise ApiError(
                    421,
                    f"This server is not called {name!r}: add it to api.hosts (--allow-host), or set an API key.",
                    code="unknown_host",
                )
        if is_foreign(scope["method"], scope["path"], headers, self._origins):
            site = (headers.get("origin") or "another site")[:100]
            raise ApiError(
                403,
                f"Web pages from {site} may not call this server: name it in api.cors_origins or with --cors-origin.",
                type="permission_error",
                code="foreign_site",
            )
        record.may_admin, record.models = True, None
