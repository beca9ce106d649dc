"""Ranks started by hand, each with its own address: what a supervisor or an agent does, seen one step at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from chorus.config.engine import EngineSpec
from chorus.platform.process.lifeline import Lifeline
from tests.support import failure_logs
from tests.support.ports import listening_port
from tests.support.sockets import short


class Ranks:
    """Processes of one group. Nothing outlives the `with` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lifeline = Lifeline()
        self._started: list[subprocess.Popen[bytes]] = []
        self._logs: dict[str, Path] = {}

    def addresses(self, count: int) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{listening_port()}" for _ in range(count))

    def follower(
        self,
        rank: int,
        address: str,
        *more: str,
        version: str | None = None,
        protocol: int | None = None,
        module: str = "chorus.rank",
    ) -> subprocess.Popen[bytes]:
        """`version` and `protocol` make it pretend to be another release."""
        pretend = f"import chorus; chorus.__version__ = {version!r}; " if version else ""
        if protocol is not None:
            pretend += f"from chorus.messages import protocol; protocol.PROTOCOL = {protocol}; "
        arguments = ["--rank", str(rank), "--listen", address, "--threads", "1", *more]
        code = f"{pretend}import sys, runpy; sys.argv[0] = 'shard'; runpy.run_module({module!r}, run_name='__main__')"
        return self._start(f"rank{rank}", [sys.executable, "-c", code, *arguments])

    def leader(self, spec: EngineSpec) -> subprocess.Popen[bytes]:
        file = self._folder / "engine.json"
        file.write_text(spec.model_dump_json())
        return self._start("leader", [sys.executable, "-m", "chorus.engine", str(file)])

    def spec(self, model: Path, ranks: tuple[str, ...], **more: object) -> EngineSpec:
        values = {"start_timeout_seconds": 60, "step_timeout_seconds": 20, "threads": 1, **more}
        return EngineSpec(address=f"unix:{short(self._folder)}/engine.sock", model_path=model, ranks=ranks, **values)  # type: ignore[arg-type]

    def log(self, name: str) -> str:
        return self._logs[name].read_text(errors="replace")

    def wait_for_log(self, name: str, words: str, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.log(name):
            assert time.monotonic() < deadline, f"no {words!r} in\n{self.log(name)}"
            time.sleep(0.05)

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        self._logs[name] = self._folder / f"{name}.log"
        with self._logs[name].open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self._lifeline.environment()},
            )
        failure_logs.keep(name, self._logs[name], process)
        self._started.append(process)
        return process

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self._lifeline.cut()
        for process in self._started:
            process.wait(60)
