"""A running backend process, and its clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import psutil

from tests.localai.table import Client
from tests.support import failure_logs
from tests.support.ports import listening_port

COMMAND = [sys.executable, "-c", "from chorus.cli import main; main()", "localai"]


START_SECONDS = 120.0


class Backend:
    """`with Backend(folder) as backend: backend.client.Health()`"""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        command: list[str] | None = None,
        cwd: Path | None = None,
        environment: dict[str, str] | None = None,
        token: str | None = None,
    ) -> None:
        self.address = f"127.0.0.1:{listening_port()}"
        self.log_file = folder / f"backend-{time.monotonic_ns()}.log"
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("CHORUS_", "MLX_", "LOCALAI_")) or key == "CHORUS_CACHE"
        }
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [*(command or COMMAND), "--addr", self.address, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=cwd or folder,
                env={**inherited, "COLUMNS": "300", "CHORUS_STATE": str(folder / "state"), **(environment or {})},
            )
        failure_logs.keep("the backend", self.log_file, self.process)
        self.client = Client(self.address, token)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def load(self, model: str | Path, *options: str, **fields: Any) -> Any:
        result = self.client.LoadModel(Model=str(model), Options=options, **fields)
        assert result.success, f"{result.message}\n{self.log}"
        return result

    def text(self, prompt: str = "The quick brown fox", **fields: Any) -> str:
        return self.client.Predict(**{"Prompt": prompt, "Tokens": 16, **fields}).message.decode()

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_for_log(self, pattern: str, seconds: float = 120) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.log)):
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, f"no {pattern!r} in\n{self.log}"
            time.sleep(0.05)
        return found

    def stop(self) -> None:
        """As LocalAI does, and nothing may be left."""
        self.client.close()
        children = self.children() if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the backend did not stop:\n{self.log}") from None
        _, left = psutil.wait_procs(children, timeout=60)
        assert not left, f"left running: {left}\n{self.log}"

    def __enter__(self) -> Backend:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                assert self.client.Health(wait_for_ready=True, timeout=1).message == b"OK"
                return self
            except grpc.RpcError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.process.kill()
                    raise AssertionError(f"the backend is not up:\n{self.log}") from None

    def __exit__(self, *_: object) -> None:
        self.stop()
