"""What a machine says of itself, and how two machines measure the link between them."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chorus.cluster import profile as profiles
from chorus.cluster.profile.kernels import Rates
from chorus.cluster.profile.links import LinkError, LinkFigures, LinkProbe, measure_link
from chorus.cluster.profile.machine import ProfileError, node_of, profile
from chorus.platform.rdma import parse_devices

RATES = Rates("chip", "float32", 16 << 30, 1e11, 1e10, 1e9, 1e9, 1e-4, ("ring",))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHORUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / profiles.PROFILE_FILE


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stands in for the measurement; records for how many threads it was asked."""
    asked: list[int] = []

    def measure(threads: int) -> Rates:
        asked.append(threads)
        return RATES

    monkeypatch.setattr(profiles, "_measured", measure)
    return asked


def test_this_machine_is_really_measured() -> None:
    found = profile(1)
    rates = found.rates
    assert rates.flops > 1e8
    assert rates.bandwidth > 1e7
    assert 0 < rates.layer_seconds < 1
    assert 0 < found.usable_memory(0.5) < found.memory_total
    assert found.disk_free > 0
    assert found.threads == 1


def test_a_measurement_is_remembered_for_each_number_of_threads(measured: list[int]) -> None:
    assert profile(1).rates == profile(1).rates == RATES
    profile(2)
    profile(1)
    assert measured == [1, 2]
    profile(1, refresh=True)
    assert measured == [1, 2, 1]


def test_another_version_of_anything_measures_again(measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    profile(1)
    monkeypatch.setattr(profiles.chorus, "__version__", "99")
    profile(1)
    assert measured == [1, 1]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": {"flops": 1}}'])
def test_a_damaged_memory_is_measured_anew(damage: str, measured: list[int], own_cache: Path) -> None:
    own_cache.parent.mkdir(parents=True)
    own_cache.write_text(damage)
    profile(1)
    assert measured == [1]
    assert len(json.loads(own_cache.read_text())) == 1


def test_a_machine_without_a_working_mlx_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nImportError: libmlx.so is missing\n")

    monkeypatch.setattr(profiles.subprocess, "run", broken)
    with pytest.raises(
        ProfileError, match=r"cannot be measured: ImportError: libmlx.so is missing; see: chorus doctor"
    ):
        profile(1)


def test_ranks_on_one_machine_share_its_memory(measured: list[int]) -> None:
    found = profile(1)
    whole, half = node_of(found, "a", 0.8), node_of(found, "a", 0.8, ranks=2)
    assert half.memory == whole.memory // 2
    assert whole.memory <= 0.8 * RATES.device_memory
    assert half.bandwidth == RATES.bandwidth


def test_rdma_devices_are_read_from_the_list() -> None:
    text = (
        "    device          \t   node GUID\n    ------          \t----------------\n    rdma_en5  \t0c4de9a1b2c30000\n"
    )
    assert parse_devices(text) == ("rdma_en5",)
    assert parse_devices("") == ()


@pytest.fixture
def probe() -> Iterator[LinkProbe]:
    with LinkProbe(timeout=5.0) as found:
        yield found


def test_a_link_has_a_latency_and_a_bandwidth(probe: LinkProbe) -> None:
    figures = measure_link(*probe.address, timeout=5.0, nbytes=1 << 20)
    assert 0 < figures.latency < 1
    assert figures.bandwidth > 1e5


def test_transports_add_their_own_cost() -> None:
    figures = LinkFigures(latency=0.001, bandwidth=1e9)
    assert figures.link("grpc").latency > figures.link("mpi").latency > 0.001
    assert figures.link("grpc").all_reduce is None
    assert figures.link("grpc", "mpi").all_reduce == pytest.approx(0.00103)


def test_nobody_there_is_an_error_that_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(LinkError, match=rf"cannot measure the link to 127.0.0.1:{port}: .*is it up and its port open"):
        measure_link("127.0.0.1", port, timeout=2.0)


def test_a_peer_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(LinkError, match="timed out"):
        measure_link(*silent.getsockname(), timeout=0.2)


def test_random_bytes_end_their_own_connection_only(probe: LinkProbe) -> None:
    with socket.create_connection(probe.address, timeout=5.0) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
    assert measure_link(*probe.address, timeout=5.0, nbytes=1024).latency > 0
