"""Workers as LocalAI's users start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support import failure_logs
from tests.support.ports import listening_port

BACKEND = Path(__file__).parents[2] / "backends" / "mlx-distributed"
WORKER = [sys.executable, "-c", "from chorus.cli.worker import app; app()", "mlx-distributed"]


class Workers:
    """`chorus worker mlx-distributed`, one process each, with its rank as a child."""

    def __init__(self, folder: Path, ranks: int, **environment: str) -> None:
        self.hostfile = folder / f"hosts-{ranks}.json"
        self.hostfile.write_text(json.dumps([f"127.0.0.1:{listening_port()}" for _ in range(ranks)]))
        self._folder = folder
        self._environment = environment
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, rank: int) -> None:
        self._start(rank, [*WORKER, "--hostfile", str(self.hostfile), "--rank", str(rank), "--threads", "1"])

    def start_as_localai(self, rank: int) -> None:
        """As `local-ai worker mlx-distributed --hostfile FILE --rank N` does."""
        flags = ["--backend", "ring", "--hostfile", str(self.hostfile), "--rank", str(rank), "--worker"]
        self._start(rank, [str(BACKEND / "run.sh"), *flags])

    def _start(self, rank: int, command: list[str]) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with self._log(rank).open("wb") as log:
            self._running[rank] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PATH": path, **self._environment},
            )
        failure_logs.keep(f"worker {rank}", self._log(rank), self._running[rank])

    def child(self, rank: int) -> psutil.Process:
        (child,) = psutil.Process(self._running[rank].pid).children()
        return child

    def logs(self) -> str:
        return "\n".join(f"--- rank {rank}\n{self._log(rank).read_text()}" for rank in self._running)

    def _log(self, rank: int) -> Path:
        return self._folder / f"{self.hostfile.stem}-rank{rank}.log"

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._running.values():
            worker.send_signal(signal.SIGTERM)
        for worker in self._running.values():
            worker.wait(60)
