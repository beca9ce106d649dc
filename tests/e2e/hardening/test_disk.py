"""A full disk, a closed pipe and a clock that is set cost log lines, never a process."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cluster.harness import START_SECONDS, Cluster, cluster, eventually, free_block
from tests.support.ports import listening_port
from tests.support.server import running
from tests.support.tiny_model import write_tiny_model

FULL = Path("/dev/full")
LOG_BYTES = 8 << 20
PIPE_BYTES = 1 << 16
NARROW = f"""
import resource, sys
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, ({LOG_BYTES}, hard))
from chorus.cli import main
main()
"""
"""A command whose files may not grow any more: what a full disk is to whoever appends to a file."""
SHIFTED = """
import psutil
from psutil import _psplatform
boot_time = _psplatform.boot_time
_psplatform.boot_time = lambda: boot_time() + 3600
"""
"""An hour after the process was started the clock was set forward by another: what psutil then says about both."""

needs_full = pytest.mark.linux("/dev/full")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    return write_tiny_model(folder, "llama", vocab_size=512, max_position_embeddings=4096)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as made:
        yield made


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Sockets in it have a name that is short enough, unlike in pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="chd-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def answers(url: str, seconds: float = START_SECONDS) -> bool:
    def asked() -> bool:
        try:
            body = {"prompt": "The quick brown fox", "max_tokens": 4}
            return httpx.post(f"{url}/v1/completions", json=body, timeout=20).status_code == 200
        except httpx.HTTPError:
            return False

    return bool(eventually(asked, seconds))


@pytest.mark.linux("prlimit")
def test_an_agent_whose_log_takes_no_more_still_runs_its_ranks_and_ends(nodes: Cluster, tiny: Path) -> None:
    """Finding 6."""
    port = free_block()
    logs = nodes.folder / "a" / "logs"
    logs.mkdir(parents=True)
    log = logs / "a_server.log"
    with log.open("wb") as stream:
        stream.truncate(LOG_BYTES)
    command = ["join", "--token", nodes.token.text, "--listen", f"127.0.0.1:{port}", "--name", "a", "--no-announce"]
    agent = nodes.run("a", ["-c", NARROW, *command, "--log-dir", str(logs)], nodes.folder / "state-a")
    api = listening_port()
    # The rank prints every import, far more than a pipe holds.
    words = ["--peer", f"127.0.0.1:{port}", "--port", str(api), "--env", "PYTHONVERBOSE=1"]
    nodes.serve(tiny, words)
    assert answers(f"http://127.0.0.1:{api}"), "the rank does not serve"
    assert log.stat().st_size == LOG_BYTES

    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, unlimited)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 0
    assert b"bytes of log were lost: file too large" in log.read_bytes()[LOG_BYTES:]


@needs_full
def test_a_coordinator_goes_on_when_the_disk_behind_its_output_is_full(nodes: Cluster, tiny: Path) -> None:
    """Finding 7."""
    api, log = listening_port(), nodes.folder / "api_server.log"
    command = ["-m", "chorus.cli", "serve", "--cluster", str(tiny), "--port", str(api), "--listen", "127.0.0.1:0"]
    server = _started([*command, "--nodes", "0", "--log-file", str(log)], nodes, FULL)
    try:
        url = f"http://127.0.0.1:{api}"
        assert answers(url)
        # Every request is a line in the log; together they are more than a pipe holds.
        with httpx.Client(timeout=120) as client:
            for number in range(400):
                assert _code(client, f"{url}/{'x' * 1000}") == 404, f"request {number} is not answered"
        assert eventually(lambda: log.read_text().count("status=404") == 400)
        assert log.stat().st_size > 2 * PIPE_BYTES
    finally:
        _end(server)


@pytest.mark.linux("start times that move with the clock")
def test_what_was_started_is_found_again_after_the_clock_was_set(tmp_path: Path) -> None:
    """Finding 17."""
    (tmp_path / "config.json").write_text("{}")
    shift = tmp_path / "shift"
    shift.mkdir()
    (shift / "sitecustomize.py").write_text(SHIFTED)
    launch = [sys.executable, "-m", "chorus.deploy.ssh.launch"]
    sleeper = [sys.executable, "-c", "import time; open('agent.ready', 'w').close(); time.sleep(600)"]
    subprocess.run([*launch, "start", str(tmp_path), "agent", *sleeper], timeout=120, check=True)
    pid = json.loads((tmp_path / "agent.pid").read_text())["pid"]
    path = os.pathsep.join([str(shift), os.environ.get("PYTHONPATH", "")])
    try:
        stop = subprocess.run(
            [*launch, "stop", str(tmp_path)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert json.loads(stop.stdout) == {"ended": {"agent": pid}}
        assert eventually(lambda: not psutil.pid_exists(pid))
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


@needs_full
def test_serving_needs_neither_its_output_nor_temporary_files(tiny: Path, short_folder: Path) -> None:
    """Nobody reads what it prints, its step log is on a full disk, and what cleaners find they delete."""
    api, temporary = listening_port(), short_folder / "tmp"
    temporary.mkdir()
    reader, writer = os.pipe()
    os.close(reader)
    launch = "from chorus.cli import main; main()"
    with os.fdopen(writer, "wb") as closed:
        server = subprocess.Popen(
            [sys.executable, "-c", launch, "serve", str(tiny), "--port", str(api), "--step-log", str(FULL)],
            stdin=subprocess.DEVNULL,
            stdout=closed,
            stderr=closed,
            cwd=short_folder,
            env={**os.environ, "TMPDIR": str(temporary), "CHORUS_STATE": str(short_folder / "state")},
        )
    url = f"http://127.0.0.1:{api}"
    try:
        assert answers(url)
        for left in temporary.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        for part in ("chorus.api", "chorus.engine"):
            (child,) = running(psutil.Process(server.pid).children(), part)
            child.kill()
            child.wait(120)
            assert answers(url), f"no answer after {part} was killed"
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0
    finally:
        _end(server)
    assert not list((short_folder / "state" / "run").iterdir())


@needs_full
def test_printing_to_a_full_disk_raises_nothing(tmp_path: Path) -> None:
    code = """
        import logging
        from chorus.cli.output import console
        from chorus.platform.process import logs
        logs.setup()
        for number in range(2000):
            logging.getLogger("chorus").info("line %d of many", number)
        print("printed")
        console.print("[bold]ready[/]")
        open("done", "w").close()
    """
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=full, stderr=full, cwd=tmp_path, timeout=120
        )
    assert done.returncode == 0
    assert (tmp_path / "done").exists()


def test_a_log_says_how_much_it_lost_once_the_disk_takes_lines_again(tmp_path: Path) -> None:
    from chorus.platform.process.output import RotatingLog

    code = """
        import resource, sys
        from pathlib import Path
        from chorus.platform.process.output import RotatingLog
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        log = RotatingLog(Path("node.log"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (25, hard))
        log.write(b"written before it was full\\n")
        log.write(b"not written\\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        log.write(b"written again\\n")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, timeout=120, check=True)
    lines = (tmp_path / "node.log").read_text().splitlines()
    assert lines == ["written before it was ful", "14 bytes of log were lost: file too large", "written again"]

    log = RotatingLog(tmp_path / "node.log")
    shutil.rmtree(tmp_path)
    log.write(b"into a new folder\n")
    assert log.path.read_text() == "into a new folder\n"
    log.close()
    log.write(b"too late\n")
    assert log.path.read_text() == "into a new folder\n"


def test_a_log_of_many_threads_has_every_line_whole(tmp_path: Path) -> None:
    from chorus.platform.process.output import RotatingLog

    log = RotatingLog(tmp_path / "node.log", max_bytes=2000, keep=50)

    def write(name: str) -> None:
        for number in range(200):
            log.write(f"{name} says {number:03}\n".encode())

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    lines = [line for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert sorted(lines) == sorted(f"{name} says {number:03}" for name in "abcd" for number in range(200))
    assert all(file.stat().st_size <= 2000 for file in tmp_path.iterdir())


def test_a_reader_that_stops_reading_holds_nobody_up() -> None:
    from chorus.platform.process.output import Screen

    reader, writer = os.pipe()
    screen = Screen(writer)
    for _ in range(100):
        screen.write(b"x" * 4095 + b"\n")
    held = len(os.read(reader, 1 << 20))
    screen.write(b"again\n")
    os.close(writer)
    with os.fdopen(reader, "rb") as rest:
        assert rest.read() == f"{409600 - held} bytes of log were lost: nobody read it\nagain\n".encode()


def test_a_small_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    from chorus.platform.storage.files import write_whole

    file = tmp_path / "state.json"
    write_whole(file, b"before", 0o600)
    assert file.stat().st_mode & 0o777 == 0o600
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write_whole(file, b"x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    assert file.read_bytes() == b"before"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(120)
    (tmp_path / f".state.json.{ended.pid}.1").write_bytes(b"half")
    write_whole(file, b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    assert file.read_bytes() == b"after"


def test_sockets_lie_in_the_state_folder_unless_their_names_would_be_too_long(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chorus.platform.process.lifeline import Lifeline

    monkeypatch.setenv("CHORUS_STATE", str(short_folder / "state"))
    line = Lifeline()
    assert line.path.parent.parent == short_folder / "state" / "run"
    assert line.path.parent.stat().st_mode & 0o777 == 0o700
    line.cut()
    monkeypatch.setenv("CHORUS_STATE", str(short_folder / ("long" * 25)))
    line = Lifeline()
    assert line.path.parent.parent in (Path(tempfile.gettempdir()), Path("/tmp"))
    line.cut()
    (short_folder / "state" / "run").chmod(0o777)
    monkeypatch.setenv("CHORUS_STATE", str(short_folder / "state"))
    line = Lifeline()
    assert line.path.parent.parent != short_folder / "state" / "run", "others may write there"
    line.cut()


def _started(command: list[str], nodes: Cluster, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=nodes.folder,
            env={**os.environ, "CHORUS_STATE": str(nodes.state)},
        )


def _code(client: httpx.Client, url: str) -> int:
    try:
        return client.get(url).status_code
    except httpx.HTTPError:
        return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its children go with it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(120)
