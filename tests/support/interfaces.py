"""A machine whose network interfaces have the addresses that a test gives them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import SimpleNamespace

import psutil
import pytest


def play(monkeypatch: pytest.MonkeyPatch, addresses: Mapping[str, str], down: tuple[str, ...] = ()) -> None:
    found = {name: [SimpleNamespace(family=socket.AF_INET, address=ip)] for name, ip in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {n: SimpleNamespace(isup=n not in down) for n in found})
