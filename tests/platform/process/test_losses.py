"""What the end of a process tells, and how the next one hears of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from chorus.platform import cgroup, system
from chorus.platform.process.exits import (
    EXIT_FAULT,
    EXIT_LEADER_GONE,
    EXIT_NO_MEMORY,
    EXIT_RANK_LOST,
)
from chorus.platform.process.losses import Cause, Loss, cause_of, exit_code, gravest, last_loss, loss_of_exit
from chorus.platform.process.no_memory import LATELY_SECONDS, MemoryKills, out_of_memory


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (-signal.SIGKILL, Cause.OUTSIDE),
        (-signal.SIGTERM, Cause.OUTSIDE),
        (-signal.SIGSEGV, Cause.FAULT),
        (-signal.SIGABRT, Cause.FAULT),
        (1, Cause.FAULT),
        (EXIT_FAULT, Cause.FAULT),
        (EXIT_NO_MEMORY, Cause.MEMORY),
        (EXIT_RANK_LOST, Cause.OUTSIDE),
        (EXIT_LEADER_GONE, Cause.OUTSIDE),
        (0, Cause.OUTSIDE),
    ],
)
def test_an_exit_code_tells_the_cause(code: int, cause: Cause) -> None:
    assert loss_of_exit("rank 1", code).cause is cause


def test_who_was_killed_while_the_kernel_killed_for_memory_had_too_little() -> None:
    assert loss_of_exit("rank 1", -signal.SIGKILL, killed_for_memory=True).cause is Cause.MEMORY
    assert loss_of_exit("rank 1", -signal.SIGSEGV, killed_for_memory=True).cause is Cause.FAULT


def test_who_was_killed_for_its_silence_is_told_by_it() -> None:
    told = loss_of_exit("rank 1", -signal.SIGKILL, killed_for_memory=True, death="stopped: no sign of life for 1.0 s")
    assert told == Loss(Cause.OUTSIDE, "rank 1 was stopped: no sign of life for 1.0 s")


def test_the_next_process_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert last_loss() is None
    loss = loss_of_exit("rank 1", EXIT_NO_MEMORY)
    for name, value in loss.environment().items():
        monkeypatch.setenv(name, value)
    assert last_loss() == loss


def test_of_several_losses_the_one_that_tells_most_counts() -> None:
    passed_on, fault = loss_of_exit("engine", EXIT_RANK_LOST), loss_of_exit("rank 1", -signal.SIGSEGV)
    assert gravest([passed_on, fault]) == fault
    assert gravest([passed_on, loss_of_exit("rank 2", EXIT_LEADER_GONE)]) == passed_on


@pytest.mark.parametrize(("text", "cause"), [("memory", Cause.MEMORY), ("", Cause.OUTSIDE), ("new", Cause.OUTSIDE)])
def test_nobody_is_blamed_for_a_cause_that_we_do_not_know(text: str, cause: Cause) -> None:
    assert Cause.read(text) is cause


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[malloc] Unable to allocate 17179869184 bytes."),
        RuntimeError("[malloc_or_wait] Unable to allocate 1024 bytes."),
        RuntimeError("[metal::malloc] Attempting to allocate 96905199616 bytes which is greater than the maximum"),
        RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPU)."),
        RuntimeError("cudaMallocAsync(&data, size, stream) failed: out of memory"),
        RuntimeError("std::bad_alloc"),
    ],
    ids=str,
)
def test_too_little_memory_is_recognised(error: Exception) -> None:
    assert exit_code(cause_of(error)) == EXIT_NO_MEMORY
    later = ValueError("the group failed")
    later.__cause__ = error
    assert out_of_memory(later)


def test_other_errors_are_no_lack_of_memory() -> None:
    assert cause_of(ValueError("sequence 2 is not known here")) is Cause.FAULT
    assert cause_of(RuntimeError("[matmul] shapes do not match")) is Cause.FAULT
    assert not out_of_memory(ValueError("a client wrote: out of memory"))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def counted(root: Path) -> int | None:
    file = cgroup.memory_kills_file(root)
    return cgroup.memory_kills(file) if file else None


def test_kills_are_counted_in_our_own_group_or_on_the_whole_machine(tmp_path: Path) -> None:
    assert counted(tmp_path) is None
    write(tmp_path, {"proc/vmstat": "nr_free_pages 17\noom_kill 3"})
    assert counted(tmp_path) == 3
    write(
        tmp_path,
        {
            "proc/self/mounts": "cgroup /cg/memory cgroup rw,memory 0 0",
            "proc/self/cgroup": "4:memory:/box",
            "cg/memory/box/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
        },
    )
    assert counted(tmp_path) == 2
    write(
        tmp_path,
        {
            "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0",
            "proc/self/cgroup": "0::/job",
            "sys/fs/cgroup/job/memory.events": "low 0\noom 4\noom_kill 1",
        },
    )
    assert counted(tmp_path) == 1


def test_a_kill_is_remembered_for_as_long_as_a_process_may_take_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "is_linux", lambda: True)
    write(tmp_path, {"proc/vmstat": "oom_kill 3"})
    kills = MemoryKills(tmp_path)
    assert not kills.lately(0.0)
    write(tmp_path, {"proc/vmstat": "oom_kill 4"})
    kills.look(10.0)
    assert kills.lately(10.0 + LATELY_SECONDS)
    assert not kills.lately(11.0 + LATELY_SECONDS)


def test_elsewhere_than_on_linux_nobody_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_linux", lambda: False)
    write(tmp_path, {"proc/vmstat": "oom_kill 3"})
    kills = MemoryKills(tmp_path)
    write(tmp_path, {"proc/vmstat": "oom_kill 4"})
    assert not kills.lately(0.0)
