"""Faults of cables: three hosts in network namespaces, a cluster over them, and clients on the first host."""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.chaos.plan import BRIEF_CUT, CUT, DUMB, SLOW, PlannedFault
from tests.chaos.served import Served
from tests.e2e.hosts.cables import MARK, Cables, end_of
from tests.e2e.hosts.namespaces import attempt, must

LOCK = Path("/run/chorus-test-cables.lock")
HOSTS = (1, 2, 3)
PAIRS = ((1, 2), (1, 3), (2, 3))
READY = r"ready .* at +(http://\S+)/v1"
BRIEF_SECONDS = 1.0
SLOW_SECONDS = 5.0


def possible() -> bool:
    return os.geteuid() == 0 and Path("/dev/net/tun").exists()


class Linked(Served):
    """A rank on each of three hosts. This process moves to the first of them."""

    _lock: Any = None

    def suffer(self, fault: PlannedFault) -> float:
        self._read_from = self.server.log_file.stat().st_size
        time.sleep(fault.after)
        moment = time.time()
        DOING[fault.kind](fault.rank + 1)
        return moment

    def stop(self) -> None:
        for process in reversed(self._cables.processes):
            process.stop()

    def _started(self) -> Any:
        self._lock = LOCK.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for host in HOSTS:
            attempt("ip", "netns", "del", f"{MARK}{host}")
        self._cables = cables = Cables(self.folder.path / "hosts")
        for one, other in PAIRS:
            cables.plug(one, other, f"{one}{other}.0")
        _enter(f"{MARK}1")
        own = {name: value for name, value in self.folder.environment.items() if name != "CHORUS_STATE"}
        for host in HOSTS[1:]:
            token = {"CHORUS_TOKEN": cables.authority.token.text}
            cables.run(host, f"agent-{host}", "join", "--name", f"host{host}", **token, **own)
        words = ["--cluster", str(self._model), "--port", "0", "--nodes", "2", "--transport", self.group.transport]
        return cables.run(1, "server", "serve", *words, "--start-timeout", "120", "--log-json", **own)

    def _wait_until_ready(self) -> None:
        self.server.url = self.server.wait_for(READY)[1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cables.remove()
        self._lock.close()
        super().__exit__(kind, error, trace)


def cut(host: int) -> None:
    for end in _ends(host):
        must("ip", "-n", f"{MARK}{host}", "link", "set", end, "down")


def cut_briefly(host: int) -> None:
    cut(host)
    time.sleep(BRIEF_SECONDS)
    for end in _ends(host):
        must("ip", "-n", f"{MARK}{host}", "link", "set", end, "up")


def pass_one_way(host: int) -> None:
    """It hears the others, and nothing that it sends arrives."""
    inside = ["ip", "netns", "exec", f"{MARK}{host}", "nft"]
    must(*inside, "-f", "-", data="table inet chaos {\nchain out {\ntype filter hook output priority 0;\ndrop\n}\n}\n")
    time.sleep(BRIEF_SECONDS)
    must(*inside, "delete", "table", "inet", "chaos")


def slow(host: int) -> None:
    for end in _ends(host):
        words = ["root", "tbf", "rate", "2mbit", "burst", "16kb", "latency", "200ms"]
        must("tc", "-n", f"{MARK}{host}", "qdisc", "add", "dev", end, *words)
    time.sleep(SLOW_SECONDS)
    for end in _ends(host):
        must("tc", "-n", f"{MARK}{host}", "qdisc", "del", "dev", end, "root")


DOING: dict[str, Callable[[int], None]] = {CUT: cut, BRIEF_CUT: cut_briefly, DUMB: pass_one_way, SLOW: slow}


def _ends(host: int) -> list[str]:
    return [end_of(f"{one}{other}.0", host) for one, other in PAIRS if host in (one, other)]


def _enter(namespace: str) -> None:
    """This thread, and all that it begins from now on, is on that host."""
    space = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(space, 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(space)
