"""How ranks that were started by hand find out that all of them are there: each knocks on every other one's port.

Nobody leads here: whoever is missing is named by everybody who waited, whichever was started first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Mapping, Sequence

from chorus.config.hostfile import Host, address_refusal, split_address
from chorus.errors import ChorusError

log = logging.getLogger("chorus.worker")

KNOCK_SECONDS = 2.0
PAUSE_SECONDS = 0.3
MOST_PAUSE_SECONDS = 5.0
REMIND_SECONDS = 30.0
"""After so long the log says for whom it waits; then after twice as long, and so on up to the most."""
MOST_REMIND_SECONDS = 600.0


class RanksMissing(ChorusError):
    """Some ranks did not come: names each, its address, and what to look at."""


class NoAddress(ChorusError):
    """A hostfile entry cannot be turned into an address: names the entry and what is needed."""


def rank_addresses(hosts: Sequence[Host]) -> tuple[str, ...]:
    """ip:port of every rank. Names become IPv4 addresses, since MLX's groups know no others."""
    if refusal := address_refusal(hosts):
        raise NoAddress(refusal)
    return tuple(f"{_ipv4_of(host.hostname, rank)}:{host.port}" for rank, host in enumerate(hosts))


def _ipv4_of(name: str | None, rank: int) -> str:
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise NoAddress(
            f"hostfile: rank {rank}: {name} has no IPv4 address ({error.strerror}): check the name, or write an address"
        ) from None
    return str(found[0][4][0])


async def wait_for_all(addresses: Mapping[int, str], timeout: float | None) -> None:
    """Wait until every rank's port has answered once; raises RanksMissing after `timeout` (None: never).

    Without a timeout nothing is held up: whoever waits is there for those that come.
    """
    seen: set[int] = set()
    knocks = [asyncio.create_task(_until_open(rank, address, seen)) for rank, address in addresses.items()]
    loop = asyncio.get_running_loop()
    began, remind = loop.time(), REMIND_SECONDS
    deadline = None if timeout is None else began + timeout
    try:
        while len(seen) < len(addresses):
            left = remind if deadline is None else min(remind, deadline - loop.time())
            waiting = [task for task in knocks if not task.done()]
            if left > 0:
                await asyncio.wait(waiting, timeout=left)
            missing = {rank: address for rank, address in addresses.items() if rank not in seen}
            if missing and deadline is not None and loop.time() >= deadline:
                raise RanksMissing(_explain(missing, timeout or 0.0))
            if missing:
                log.info("waiting for %s, %.0f s so far", _named(missing), loop.time() - began)
                remind = min(2 * remind, MOST_REMIND_SECONDS)
    finally:
        for task in knocks:
            task.cancel()
        await asyncio.gather(*knocks, return_exceptions=True)


async def _until_open(rank: int, address: str, seen: set[int]) -> None:
    host, port = split_address(address)
    pause = PAUSE_SECONDS
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), KNOCK_SECONDS)
            somebody = answered_by_another(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            if somebody:
                seen.add(rank)
                return
        await asyncio.sleep(pause)
        pause = min(1.2 * pause, MOST_PAUSE_SECONDS)


def answered_by_another(writer: asyncio.StreamWriter) -> bool:
    """Whether a knock met somebody else: on loopback it may be given the very port it knocks on, and meet itself."""
    if writer.get_extra_info("sockname") != writer.get_extra_info("peername"):
        return True
    # Closed in the usual way it would keep the port for a minute from the rank that is to listen there.
    at_once = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    return False


def _named(missing: Mapping[int, str]) -> str:
    return ", ".join(f"rank {rank} at {address}" for rank, address in sorted(missing.items()))


def _explain(missing: Mapping[int, str], timeout: float) -> str:
    ports = ", ".join(sorted({address.rpartition(":")[2] for address in missing.values()}))
    return (
        f"{_named(missing)} did not come within {timeout:g} s: is it started, "
        f"and does its firewall let TCP port {ports} through?"
    )
