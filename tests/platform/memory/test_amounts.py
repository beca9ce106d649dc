from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from chorus.platform import cgroup
from chorus.platform.cgroup import MemoryLimit
from chorus.platform.cpu.cores import fewest_cores, threads_per_rank, usable_cores
from chorus.platform.memory import amounts
from tests.platform.conftest import RunPython
from tests.support.mac import PAGE, play_mac, vm_stat_text

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


V2 = {"proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", "proc/self/cgroup": "0::/team/job"}
V1 = {
    "proc/self/mounts": "cgroup /cg/memory cgroup rw,memory 0 0\ncgroup /cg/cpu cgroup rw,cpu,cpuacct 0 0",
    "proc/self/cgroup": "5:cpu,cpuacct:/box\n4:memory:/box",
}


def test_nothing_limits_a_machine_without_groups(tmp_path: Path) -> None:
    assert cgroup.memory_limit(tmp_path) is None
    assert cgroup.cpu_quota(tmp_path) is None


def test_a_version_2_limit_counts_used_memory_without_the_page_cache(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/team/job"
    root = write(
        tmp_path,
        {
            **V2,
            f"{group}/memory.max": str(8 * GIB),
            f"{group}/memory.current": str(5 * GIB),
            f"{group}/memory.stat": f"anon {2 * GIB}\nactive_file {GIB}\ninactive_file {2 * GIB}",
        },
    )
    assert cgroup.memory_limit(root) == MemoryLimit(8 * GIB, 2 * GIB)


def test_a_parent_that_leaves_less_is_the_limit(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            **V2,
            "sys/fs/cgroup/team/job/memory.max": "max",
            "sys/fs/cgroup/team/job/memory.current": "1",
            "sys/fs/cgroup/team/memory.max": str(4 * GIB),
            "sys/fs/cgroup/team/memory.current": str(3 * GIB),
        },
    )
    assert cgroup.memory_limit(root) == MemoryLimit(4 * GIB, 3 * GIB)


def test_a_version_1_limit_is_read(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            **V1,
            "cg/memory/box/memory.limit_in_bytes": str(2 * GIB),
            "cg/memory/box/memory.usage_in_bytes": str(GIB),
            "cg/memory/box/memory.stat": f"total_inactive_file {GIB // 2}",
        },
    )
    assert cgroup.memory_limit(root) == MemoryLimit(2 * GIB, GIB // 2)


def test_the_huge_number_of_version_1_means_no_limit(tmp_path: Path) -> None:
    files = {"cg/memory/box/memory.limit_in_bytes": "9223372036854771712", "cg/memory/box/memory.usage_in_bytes": "1"}
    assert cgroup.memory_limit(write(tmp_path, {**V1, **files})) is None


def test_in_a_container_that_shows_the_hosts_path_the_mounted_group_is_ours(tmp_path: Path) -> None:
    files = {"cg/memory/memory.limit_in_bytes": str(GIB), "cg/memory/memory.usage_in_bytes": "0"}
    assert cgroup.memory_limit(write(tmp_path, {**V1, **files})) == MemoryLimit(GIB, 0)


def test_cpu_quotas_of_both_versions_are_cores(tmp_path: Path) -> None:
    two = write(tmp_path / "2", {**V2, "sys/fs/cgroup/team/job/cpu.max": "150000 100000"})
    one = write(
        tmp_path / "1", {**V1, "cg/cpu/box/cpu.cfs_quota_us": "300000", "cg/cpu/box/cpu.cfs_period_us": "100000"}
    )
    free = write(tmp_path / "0", {**V1, "cg/cpu/box/cpu.cfs_quota_us": "-1", "cg/cpu/box/cpu.cfs_period_us": "100000"})
    assert (cgroup.cpu_quota(two), cgroup.cpu_quota(one), cgroup.cpu_quota(free)) == (1.5, 3.0, None)


def test_a_limit_above_the_machine_does_not_add_memory() -> None:
    assert amounts.within_limit(4 * GIB, 64 * GIB) == 4 * GIB
    assert amounts.within_limit(64 * GIB, 4 * GIB) == 4 * GIB
    assert amounts.within_limit(64 * GIB, None) == 64 * GIB


def test_a_group_over_its_limit_has_nothing_left_not_less() -> None:
    assert amounts.left_of(MemoryLimit(GIB, 2 * GIB)) == 0


def test_the_figures_of_this_machine_are_consistent() -> None:
    assert 0 < amounts.resident_memory() < amounts.total_memory()
    assert 0 < amounts.available_memory() <= amounts.total_memory()
    assert usable_cores() >= 1


def fake_mlx(metal: bool, active: int = 0, **info: int) -> SimpleNamespace:
    return SimpleNamespace(
        device_info=lambda: info,
        get_active_memory=lambda: active,
        metal=SimpleNamespace(is_available=lambda: metal),
    )


def test_metal_offers_its_recommended_working_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amounts, "available_memory", lambda: 20 * GIB)
    mx = fake_mlx(True, active=2 * GIB, max_recommended_working_set_size=12 * GIB, memory_size=16 * GIB)
    assert amounts.device_memory(mx) == amounts.DeviceMemory(12 * GIB, 10 * GIB)  # type: ignore[arg-type]


def test_metal_never_offers_more_than_the_machine_has_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amounts, "available_memory", lambda: 3 * GIB)
    mx = fake_mlx(True, max_recommended_working_set_size=12 * GIB)
    assert amounts.device_memory(mx).available == 3 * GIB  # type: ignore[arg-type]


def test_a_mac_offers_what_macos_calls_available_and_not_its_few_free_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An M2 Max after a load: psutil said 2.2 GB where the GPU had room for 20 (vllm-metal, pull request 197)."""
    play_mac(monkeypatch, tmp_path, 32 * GIB, {"kern.memorystatus_level": 61}, psutil_available=int(2.2 * 10**9))
    mx = fake_mlx(True, active=4 * GIB, max_recommended_working_set_size=22 * GIB)
    assert amounts.available_memory() == 32 * GIB * 61 // 100
    assert amounts.device_memory(mx).available == 18 * GIB  # type: ignore[arg-type]


def test_without_that_word_a_mac_has_what_is_neither_wired_nor_compressed_nor_anonymous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = vm_stat_text(
        Pages_free=3846, Pages_wired_down=131904, Anonymous_pages=103795, Pages_occupied_by_compressor=194212
    )
    play_mac(monkeypatch, tmp_path, 8 * GIB, vm_stat=pages, psutil_available=3846 * PAGE)
    assert amounts.available_memory() == 8 * GIB - (131904 + 103795 + 194212) * PAGE


def test_a_raised_limit_of_the_gpu_is_its_working_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_mac(monkeypatch, tmp_path, 128 * GIB, {"kern.memorystatus_level": 95, "iogpu.wired_limit_mb": 114688})
    mx = fake_mlx(True, max_recommended_working_set_size=96 * GIB)
    assert amounts.device_memory(mx).total == 112 * GIB  # type: ignore[arg-type]


def test_cuda_offers_its_free_memory() -> None:
    mx = fake_mlx(False, total_memory=140 * GIB, free_memory=90 * GIB)
    assert amounts.device_memory(mx) == amounts.DeviceMemory(140 * GIB, 90 * GIB)  # type: ignore[arg-type]


def test_a_cpu_offers_main_memory() -> None:
    assert amounts.device_memory(fake_mlx(False)).total == amounts.total_memory()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("allowed", "physical", "quota", "cores"),
    [(16, 8, None, 8), (4, 8, None, 4), (16, None, None, 16), (16, 8, 2.5, 2), (16, 8, 0.5, 1)],
)
def test_the_tightest_limit_decides_the_cores(
    allowed: int, physical: int | None, quota: float | None, cores: int
) -> None:
    assert fewest_cores(allowed, physical, quota) == cores


@pytest.mark.parametrize(("cores", "ranks", "threads"), [(8, 1, 7), (8, 3, 2), (2, 1, 1), (2, 2, 1), (2, 5, 1)])
def test_ranks_divide_the_cores(cores: int, ranks: int, threads: int) -> None:
    assert threads_per_rank(cores, ranks) == threads


def test_a_process_that_something_was_booked_for_decides_by_that_alone(run_python: RunPython) -> None:
    told = run_python(
        """
        import mlx.core as mx
        from chorus.platform.memory import amounts as memory
        part = memory.device_memory(mx)
        print(part.total, part.available, memory.left_for_cache(mx, None), memory.resident_memory(mx))
        """,
        **amounts.booked_environment(300 << 20),
    )
    total, available, left, resident = map(int, told.split())
    assert total == 300 << 20
    assert 0 < available <= (300 << 20) - resident + (8 << 20)
    assert abs(left - available) < 8 << 20
