from __future__ import annotations

import sys
import time

import psutil

from benchmarks.servers import Started, child_environment, rank_of, runs_module

# A child that ends when asked, and a grandchild in a session of its own that does not.
STUBBORN = """
import signal, subprocess, sys
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print("ready", flush=True)
signal.pause()
"""


def wait_for_log(started: Started, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in started.log.read_text():
        started.check_alive()
        assert time.monotonic() < deadline, started.log.read_text()
        time.sleep(0.02)


def test_everything_that_a_program_started_ends_with_it() -> None:
    with Started("stubborn", [sys.executable, "-c", STUBBORN]) as started:
        wait_for_log(started, "ready")
        running = started.processes()
        assert len(running) == 2
        assert len(started.stop()) == 1
    assert not any(process.is_running() for process in running)


def test_a_paused_program_stops_and_can_still_be_ended() -> None:
    with Started("stubborn", [sys.executable, "-c", STUBBORN]) as started:
        wait_for_log(started, "ready")
        started.pause()
        running = started.processes()
        deadline = time.monotonic() + 60
        # A signal is delivered when its process runs next.
        while {process.status() for process in running} != {psutil.STATUS_STOPPED}:
            assert time.monotonic() < deadline, [process.status() for process in running]
            time.sleep(0.01)
    assert not any(process.is_running() for process in running)


def test_settings_of_the_user_do_not_reach_the_servers() -> None:
    own = {"CHORUS_ENGINE__THREADS": "9", "CHORUS_CACHE": "/cache", "PATH": "/bin"}
    environment = child_environment(own, "mark", {"PYTHONPATH": "/x"})
    assert "CHORUS_ENGINE__THREADS" not in environment
    assert environment["CHORUS_CACHE"] == "/cache"
    assert environment["PYTHONPATH"] == "/x"


def test_a_launcher_is_not_taken_for_the_rank_it_launches() -> None:
    rank = ["/venv/bin/python3", "-m", "chorus.rank", "--rank", "2", "--listen", "unix:x"]
    assert runs_module(rank, "chorus.rank")
    assert not runs_module(["/venv/bin/mpirun", "-n", "1", *rank], "chorus.rank")
    assert not runs_module([], "chorus.rank")
    assert rank_of(rank) == 2
