"""Agents, coordinators and workers as real processes on loopback, each with a state folder of its own."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from chorus.security.authority import Authority
from chorus.security.node_folder import RANK_PORTS
from chorus.security.token import Token
from tests.support import failure_logs
from tests.support.ports import port_block

START_SECONDS = 240.0
"""A node that was never measured is measured first, all of them on the same few cores here."""
ANSWER_SECONDS = 300.0
"""For thousands of tokens, each of which takes all ranks, and these as many turns on a busy machine."""
LAUNCH = "from chorus.cli import main; main()"


def eventually(check: Callable[[], Any], seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := check()):
        if time.monotonic() > deadline:
            return found
        time.sleep(0.05)
    return found


def free_block() -> int:
    """For an agent, which uses its own port and those after it."""
    return port_block(2 + RANK_PORTS)


class Process:
    """One command, its output in a file; ended with everything below it."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        folder: Path,
        environment: dict[str, str],
        stdin: Any = subprocess.DEVNULL,
        inside: Sequence[str] = (),
    ) -> None:
        """`inside` are the words of a program that runs the command elsewhere, in another namespace say."""
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log_file = folder / f"{name}-{time.monotonic_ns()}.log"
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith("CHORUS_") or key == "CHORUS_CACHE"
        }
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [*inside, sys.executable, *arguments],
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**kept, "COLUMNS": "300", **environment},
            )
        failure_logs.keep(name, self.log_file, self.process)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def wait_for(self, pattern: str, seconds: float = START_SECONDS) -> re.Match[str]:
        def look() -> Any:
            # In this order: its last words may be the ones.
            ended = self.process.poll()
            found = re.search(pattern, self.log)
            if not found and ended is not None:
                raise AssertionError(f"{self.name} ended with {ended}:\n{self.log}")
            return found

        found = eventually(look, seconds)
        assert found, f"{self.name} did not say {pattern!r}:\n{self.log}"
        return found  # type: ignore[no-any-return]

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, seconds: float = 120.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = START_SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {seconds} s:\n{self.log}") from None

    def end(self) -> None:
        """Whatever the test left behind."""
        with contextlib.suppress(psutil.NoSuchProcess):
            below = self.children()
            with contextlib.suppress(AssertionError):
                self.stop(10)
            for process in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


class Cluster:
    """`with cluster(tmp_path) as c: c.agent("a"); c.serve("tiny", ["--peer", …])`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state-coordinator"
        self.authority = Authority.create(self.state / "authority")
        self.processes: list[Process] = []

    @property
    def token(self) -> Token:
        return Authority(self.state / "authority").token

    def run(
        self, name: str, arguments: list[str], state: Path, stdin: Any = subprocess.DEVNULL, **environment: str
    ) -> Process:
        process = Process(name, arguments, self.folder / name, {"CHORUS_STATE": str(state), **environment}, stdin)
        self.processes.append(process)
        return process

    def chorus(
        self,
        name: str,
        *arguments: str,
        state: Path | None = None,
        stdin: Any = subprocess.DEVNULL,
        **environment: str,
    ) -> Process:
        return self.run(name, ["-c", LAUNCH, *arguments], state or self.state, stdin, **environment)

    def agent(
        self, name: str, *arguments: str, port: int | None = None, token: str | None = None, **environment: str
    ) -> tuple[Process, int]:
        port = port or free_block()
        command = ["join", "--listen", f"127.0.0.1:{port}", "--name", name]
        logs = self.folder / name / "logs"
        command += ["--no-announce", "--log-dir", str(logs), *arguments]
        failure_logs.keep(f"the ranks of {name}", logs)
        environment = {"CHORUS_TOKEN": token or self.token.text, **environment}
        return self.chorus(name, *command, state=self.folder / f"state-{name}", **environment), port

    def serve(self, model: str | Path, arguments: list[str], **environment: str) -> Process:
        command = ["-m", "chorus.cli", "serve", "--cluster", str(model), "--port", "0"]
        if "--listen" not in arguments:
            command += ["--listen", "127.0.0.1:0"]
        return self.run("coordinator", [*command, *arguments], self.state, **environment)

    def end(self) -> None:
        for process in reversed(self.processes):
            process.end()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.end()


def url_of(server: Process) -> str:
    return server.wait_for(r"ready .* at +(http://\S+)/v1")[1]


class Stream(threading.Thread):
    """A client that reads an answer as it comes."""

    def __init__(self, url: str, prompt: str = "The quick brown fox", **options: Any) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._body = {"prompt": prompt, "max_tokens": 200, "temperature": 0, "stream": True, **options}
        self.events: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.failure = ""
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("POST", f"{self._url}/v1/completions", json=self._body, timeout=ANSWER_SECONDS) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        self.events.append(json.loads(line.removeprefix("data: ")))
                        self.times.append(time.monotonic())
        except httpx.HTTPError as error:
            self.failure = repr(error)

    def wait_for(self, count: int) -> None:
        """Until so many events have come."""
        assert eventually(lambda: len(self.events) >= count or not self.is_alive())
        assert self.is_alive(), f"it has ended: {self.events[-1:]} {self.failure}"

    def text(self) -> str:
        """All of it, once it has ended in order."""
        self.join(ANSWER_SECONDS)
        assert not self.is_alive(), "the stream does not end"
        assert not self.failure, self.failure
        told = [event for event in self.events if "error" in event]
        assert not told, told
        assert self.events[-1]["choices"][0]["finish_reason"] == "length", self.events[-1]
        return "".join(event["choices"][0]["text"] for event in self.events)

    @property
    def longest_gap(self) -> float:
        return max(later - earlier for earlier, later in itertools.pairwise(self.times))


def complete(url: str, prompt: str = "The quick brown fox", **options: Any) -> str:
    body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, **options}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=ANSWER_SECONDS)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])
