"""A disk that fills up to the last byte under a cluster with traffic: it serves throughout, and ends as usual."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import chorus
from tests.support.tiny_model import write_tiny_model

pytestmark = [pytest.mark.system, pytest.mark.linux("namespaces"), pytest.mark.timeout(600)]

URL = "http://127.0.0.1:8100"
SPARE_BYTES = 8 << 20
ASK = """
import httpx, json, sys, threading
url, at_least = sys.argv[1], int(sys.argv[2])
go_on, failures, asked = threading.Event(), [], [0] * 4
def ask(number):
    body = {"prompt": "The quick brown fox", "max_tokens": 4}
    with httpx.Client(timeout=60) as client:
        while not failures and not (go_on.is_set() and asked[number] >= at_least):
            try:
                answers = client.post(url + "/v1/completions", json=body), client.get(url + "/x" * 300)
                codes = tuple(answer.status_code for answer in answers)
                if codes != (200, 404):
                    failures.append(codes)
            except httpx.HTTPError as error:
                failures.append(repr(error))
            asked[number] += 1
threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
sys.stdin.read()
go_on.set()
[thread.join() for thread in threads]
print(json.dumps({"asked": sum(asked), "failures": failures}))
"""


@dataclass
class Machine:
    """Its own network and its own home, which is a disk of its own."""

    holder: subprocess.Popen[bytes]
    home: Path
    environment: dict[str, str]

    @property
    def seen(self) -> Path:
        """The home as it is seen from outside."""
        return Path(f"/proc/{self.holder.pid}/root{self.home}")

    def command(self, *words: str) -> list[str]:
        inside = ["nsenter", "-t", str(self.holder.pid), "-m", "-n"]
        # nsenter's own --wd is looked up outside, where the home is an empty folder of the real disk.
        return [*inside, "sh", "-c", 'cd "$0" && exec "$@"', str(self.home), *words]

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=300, check=False, env=self.environment
        )
        assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done

    def chorus(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "chorus.cli", *words)

    @contextlib.contextmanager
    def traffic(self, at_least: int) -> Iterator[dict[str, Any]]:
        """Four clients that ask without a pause, each so many times; what became of it is there afterwards."""
        told: dict[str, Any] = {}
        clients = subprocess.Popen(
            self.command(sys.executable, "-c", ASK, URL, str(at_least)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment,
        )
        try:
            yield told
            told.update(json.loads(clients.communicate(timeout=300)[0]))
        finally:
            clients.kill()
            clients.wait(60)

    def fill(self) -> None:
        """Made little larger than what it holds, and then filled: never with more than that little."""
        assert self.seen.stat().st_dev != Path("/").stat().st_dev
        used = os.statvfs(self.seen)
        held = (used.f_blocks - used.f_bfree) * used.f_frsize
        self.run("mount", "-o", f"remount,size={held + SPARE_BYTES}", str(self.home))
        block, written = 1 << 16, 0
        with (self.seen / "fill").open("wb", buffering=0) as stream:
            while block:
                assert written <= SPARE_BYTES, "this disk is not the one that was made small"
                try:
                    written += stream.write(bytes(block)) or 0
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    block //= 2
        assert not os.statvfs(self.seen).f_bavail

    def free(self) -> None:
        (self.seen / "fill").unlink()

    def processes(self, *words: str) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ().get("HOME") == str(self.home)
                if mine and all(word in process.cmdline() for word in words):
                    found.append(process)
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0 or not shutil.which("nsenter"):
        pytest.skip("needs root: a disk and a network of its own are made")
    home = Path("/run/chorus-full-disk")
    home.mkdir(exist_ok=True)
    made = f"ip link set lo up && mount -t tmpfs -o size=1200m,mode=700 none {home} && echo made && exec sleep 3600"
    holder = subprocess.Popen(["unshare", "--mount", "--net", "sh", "-c", made], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"made\n"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("CHORUS_", "XDG_"))},
        "HOME": str(home),
        "CHORUS_CACHE": os.environ.get("CHORUS_CACHE", str(Path("~/.cache/chorus").expanduser())),
        "PYTHONPATH": str(Path(chorus.__file__).parents[1]),
        "COLUMNS": "250",
    }
    found = Machine(holder, home, environment)
    try:
        assert found.seen.stat().st_dev != home.stat().st_dev
        yield found
    finally:
        for process in found.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        holder.kill()
        holder.wait(60)
        home.rmdir()


def test_a_cluster_serves_throughout_while_its_disk_is_full_to_the_last_byte(machine: Machine, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", "llama", vocab_size=512, max_position_embeddings=4096)
    config = machine.seen / "disk.json"
    devices = [
        {"device_id": name, "hostname": "127.0.0.1", "port": 50051 + number, "python": sys.executable}
        for number, name in enumerate(("one", "two"))
    ]
    config.write_text(json.dumps({"model": str(model), "devices": devices}))
    named = ["-c", str(machine.home / "disk.json")]
    machine.chorus("up", *named)
    (log,) = (machine.seen / ".chorus").glob("disk-*/one/logs/api_server.log")

    with machine.traffic(at_least=100) as told:
        machine.fill()
    assert told["failures"] == []
    assert told["asked"] >= 400
    assert not os.statvfs(machine.seen).f_bavail, "it was full all the time"

    # What is lost while the disk is full comes back, and commands do their work.
    for words in (["chorus.api"], ["chorus.rank"], ["chorus.engine"]):
        # One that starts another looks like two for a moment.
        only = eventually(lambda words=words: found if len(found := machine.processes(*words)) == 1 else [])
        assert only, machine.processes(*words)
        only[0].kill()
        assert eventually(lambda: answers(machine)), f"no answer after {words} was killed"
    assert "two" in machine.chorus("status", *named).stdout
    assert "is in the cluster" in machine.chorus("logs", "two", *named).stdout

    held = log.stat().st_size
    machine.free()
    assert answers(machine)
    text = lambda: log.read_bytes()[held:].decode(errors="replace")  # noqa: E731
    assert eventually(lambda: "bytes of log were lost: no space left on device" in text()), text()
    assert eventually(lambda: "path=/v1/completions status=200" in text()), text()

    machine.fill()
    down = machine.chorus("down", *named)
    assert "one: ended coordinator" in down.stdout
    assert "two: ended agent" in down.stdout
    assert eventually(lambda: not machine.processes()), machine.processes()


def answers(machine: Machine) -> bool:
    body = json.dumps({"prompt": "The quick brown fox", "max_tokens": 4})
    words = ["-sS", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Content-Type: application/json"]
    return machine.run("curl", *words, "-d", body, f"{URL}/v1/completions", check=False).stdout == "200"


def eventually(check: Callable[[], Any], seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
