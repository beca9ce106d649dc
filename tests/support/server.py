"""A real `chorus serve` with all its processes, for tests that look at it from outside."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil

from tests.support import failure_logs

START_SECONDS = 240.0
STOP_SECONDS = 120.0


class ChorusServer:
    """`with ChorusServer(model, ["--ranks", "2"], folder) as server: server.client()…`"""

    def __init__(
        self,
        model: str | Path | None,
        arguments: list[str],
        folder: Path,
        environment: dict[str, str] | None = None,
        enter: Sequence[str] = (),
    ) -> None:
        """Without a model it is for the settings to name some. `enter` stands before the command: what runs it
        somewhere else."""
        self.log_file = folder / f"serve-{time.monotonic_ns()}.log"
        named = [] if model is None else [str(model)]
        command = [sys.executable, "-c", "from chorus.cli import main; main()", "serve", *named, "--port", "0"]
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith("CHORUS_") or key == "CHORUS_CACHE"
        }
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [*enter, *command, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={**inherited, "COLUMNS": "300", **(environment or {})},
            )
        failure_logs.keep("chorus serve", self.log_file, self.process)
        self.url = ""

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        """The ready line names the port that was free."""
        deadline = time.monotonic() + START_SECONDS
        while not (found := re.search(r"ready .* at +(https?://\S+)/v1", self.log)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"chorus serve is not ready (exit code {self.process.poll()}):\n{self.log}")
            time.sleep(0.05)
        self.url = found[1]

    def wait_for_exit(self, seconds: float = START_SECONDS) -> int:
        return self.process.wait(seconds)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=300)

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, timeout=120).json()

    def complete(self, prompt: str | list[int] | list[str], **options: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "max_tokens": 16, "temperature": 0, **options}
        response = httpx.post(f"{self.url}/v1/completions", json=body, timeout=300)
        assert response.status_code == 200, response.text
        return response.json()

    def text(self, prompt: str | list[int], **options: Any) -> str:
        return str(self.complete(prompt, **options)["choices"][0]["text"])

    def processes(self) -> list[psutil.Process]:
        """Everything below the supervisor."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def process_named(self, part: str) -> psutil.Process:
        """Waits for one that is just being started."""
        deadline = time.monotonic() + STOP_SECONDS
        while True:
            for process in self.processes():
                if part in (words := _words(process)) and "--oversubscribe" not in words:
                    return process
            assert time.monotonic() < deadline, f"there is no {part}:\n{self.log}"
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends as a user would, and checks that nothing is left."""
        children = self.processes() if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"chorus serve did not stop within {STOP_SECONDS} s:\n{self.log}") from None
        _, left = psutil.wait_procs(children, timeout=60)
        assert not left, f"left running: {left}\n{self.log}"

    def __enter__(self) -> ChorusServer:
        self.wait_until_ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()


def answered(url: str) -> str | None:
    """The text of an answer; None where there is none yet."""
    body = {"prompt": "The quick brown fox", "max_tokens": 8, "temperature": 0}
    with contextlib.suppress(httpx.HTTPError):
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=20)
        if answer.status_code == 200:
            return str(answer.json()["choices"][0]["text"])
    return None


def running(processes: list[psutil.Process], part: str) -> list[psutil.Process]:
    """Those of them that run this part of Chorus; some may end meanwhile."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found += [process] if part in " ".join(process.cmdline()) else []
    return found


def _words(process: psutil.Process) -> str:
    """Its command line; nothing where it has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
