"""What a machine says of itself."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from chorus.cluster.profile import machine as profiles
from chorus.cluster.profile.machine import ProfileError, node_of, profile
from chorus.cluster.profile.rates import Rates
from chorus.deploy.nodes.plan import machine_of
from chorus.platform.cpu import products
from chorus.platform.network.rdma import parse_devices
from tests.support.mac import play_mac

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
    kernels = rates.kernel_flops, rates.kernel_bandwidth, rates.kernel_layer_seconds
    there = found.backend == "cpu" and products.installed()
    assert all(rate is not None and rate > 0 for rate in kernels) if there else kernels == (None,) * 3
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


def test_figures_from_before_there_were_kernels_are_still_read(measured: list[int], own_cache: Path) -> None:
    older = {key: value for key, value in asdict(RATES).items() if not key.startswith("kernel_")}
    own_cache.parent.mkdir(parents=True)
    own_cache.write_text(json.dumps({profiles._key(1): older}))
    assert profile(1).rates == RATES
    assert not node_of(profile(1), "a", 0.8).has_kernels
    assert measured == []


def test_a_machine_whose_kernels_cannot_be_measured_is_planned_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if "chorus.rank.products.rates" in command:
            return subprocess.CompletedProcess(command, 1, "", "ImportError: libonnxruntime is missing\n")
        return subprocess.CompletedProcess(command, 0, json.dumps(asdict(RATES)), "")

    monkeypatch.setattr(profiles.device, "backend", lambda: "cpu")
    monkeypatch.setattr(profiles.products, "installed", lambda: True)
    monkeypatch.setattr(profiles.subprocess, "run", run)
    assert profile(1).rates == RATES
    assert "libonnxruntime is missing" in caplog.text


def test_what_the_kernels_do_is_told_of_a_node(measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    rates = replace(RATES, kernel_flops=3e11, kernel_bandwidth=4e10, kernel_layer_seconds=1e-3)
    monkeypatch.setattr(profiles, "_measured", lambda threads: rates)
    node = node_of(profile(1), "a", 0.8)
    there = machine_of(json.loads(json.dumps(asdict(node))))  # as its agent tells a coordinator
    assert there == node
    assert there.has_kernels
    assert not machine_of({key: value for key, value in asdict(node).items() if "kernel" not in key}).has_kernels


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


def test_a_limit_that_a_macs_owner_raises_is_seen_at_once_and_never_remembered(
    measured: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usable(wired_limit_mb: int) -> int:
        said = {"kern.memorystatus_level": 100, "iogpu.wired_limit_mb": wired_limit_mb}
        play_mac(monkeypatch, tmp_path, 24 << 30, said)
        return profile(1).usable_memory(1.0)

    reserve = 2 << 30
    assert [usable(mb) for mb in (0, 20480, 0)] == [RATES.device_memory - reserve, (20 << 30) - reserve, (14 << 30)]
    assert measured == [1]


def test_rdma_devices_are_read_from_the_list() -> None:
    text = (
        "    device          \t   node GUID\n    ------          \t----------------\n    rdma_en5  \t0c4de9a1b2c30000\n"
    )
    assert parse_devices(text) == ("rdma_en5",)
    assert parse_devices("") == ()
