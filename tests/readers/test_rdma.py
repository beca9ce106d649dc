"""RDMA devices as a reader of the ring project writes them, into `hosts.json`: they reach the ranks whichever way these
are started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import chorus.deploy.nodes.serve as nodes
from chorus.deploy.nodes.options import ClusterOptions
from chorus.deploy.ssh.cluster import told_settings
from tests.readers.conftest import Typed
from tests.readers.tables import now

DEVICES = ((None, "rdma_en5"), ("rdma_en4", None))
TYPED = "`mlx.launch --hostfile hosts.json --backend jaccl python3 server.py`, with `rdma` in `hosts.json`"


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> list[ClusterOptions]:
    """Those with which a coordinator would start its ranks."""
    seen: list[ClusterOptions] = []
    monkeypatch.setattr(nodes, "serve_over_nodes", lambda settings, insecure, options, *_: seen.append(options))
    return seen


def test_they_reach_the_coordinator_that_up_starts(
    type_line: Callable[[str, Path], Typed],
    folder_of: Callable[[str], Path],
    options: list[ClusterOptions],
    tmp_path: Path,
) -> None:
    (line,) = now("ring_project", TYPED)
    settings = type_line(line, folder_of("ring_project")).settings
    assert settings
    sent = tmp_path / "host"
    sent.mkdir()
    (sent / "config.json").write_bytes(told_settings(settings))
    # What `up` types on the first host, less what tells it where to listen and write.
    type_line(
        "chorus serve --cluster --config config.json --nodes 1 --peer 192.168.5.2:50150 --leader-port 50051", sent
    )
    assert [(seen.rdma_devices, seen.nodes_choose_transport) for seen in options] == [(DEVICES, False)]


def test_they_reach_the_coordinator_that_serve_is(
    type_line: Callable[[str, Path], Typed], folder_of: Callable[[str], Path], options: list[ClusterOptions]
) -> None:
    type_line("DISTRIBUTED_BACKEND=jaccl chorus serve --cluster -c hosts-rdma.json", folder_of("ring_project"))
    assert [(seen.rdma_devices, seen.nodes_choose_transport) for seen in options] == [(DEVICES, False)]
