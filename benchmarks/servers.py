"""Starts the servers that are compared, and ends them together with everything they started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

START_SECONDS = 300.0
STOP_SECONDS = 120.0
ROOT = Path(__file__).resolve().parent.parent

# Every process of a run inherits this mark, so that it is found again when its parents are gone.
_MARK = "BENCHMARK_RUN"
# Settings of the user that describe this machine; all others would change what is measured.
_KEPT_SETTINGS = {"CHORUS_CACHE", "CHORUS_BLAS"}
_POLL_SECONDS = 0.2


class ServerFailed(Exception):
    """A server did not start or answer: says which, why, and shows the end of its log."""


class Started:
    """A program in a session of its own. Leaving the block ends it and all that it started."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._command = list(command)
        self._mark = uuid.uuid4().hex
        self._environment = child_environment(os.environ, self._mark, environment or {})
        self._folder = tempfile.TemporaryDirectory(prefix="chorus-benchmark-")
        self.log = Path(self._folder.name) / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            # An open pipe, not /dev/null: mlx.launch spins on a standard input that is always readable.
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._folder.name,
                stdin=subprocess.PIPE,
                stdout=self._output(log),
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> list[str]:
        """Ask it to end and kill what remains; what had to be killed is returned, by name."""
        if self._process is None:
            return []
        root, self._process = self._process, None
        self.resume()
        root.terminate()
        with suppress(subprocess.TimeoutExpired):
            root.wait(STOP_SECONDS)
        left = self.processes()
        names = [_describe(process) for process in left]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        root.wait(STOP_SECONDS)
        _, alive = psutil.wait_procs(left, timeout=STOP_SECONDS)
        for pipe in (root.stdin, root.stdout):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()
        if alive:
            raise ServerFailed(f"{self.name}: processes {[process.pid for process in alive]} survive SIGKILL")
        return names

    def processes(self) -> list[psutil.Process]:
        """All that this run started and that is still there, whoever its parent is now."""
        return [process for process in psutil.process_iter() if _mark_of(process) == self._mark]

    def processes_running(self, module: str) -> list[psutil.Process]:
        """Those that run `python -m MODULE`."""
        return [process for process in self.processes() if runs_module(_command_line(process), module)]

    def pause(self) -> None:
        """Freeze it, so that a peer that spins while idle takes nothing from the other side's measurement."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def check_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise ServerFailed(f"{self.name} ended with code {self._process.returncode}:\n{self.log_tail()}")

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _output(self, log: Any) -> Any:
        return log

    def _wait_until_ready(self) -> None:
        """Nothing to wait for unless a kind of program says otherwise."""

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class HttpServer(Started):
    """A server with OpenAI's completions on a port of this machine."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        ready_path: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, command, environment)
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._ready_path = ready_path

    def get(self, path: str) -> dict[str, Any]:
        response = httpx.get(self.url + path, timeout=30.0, trust_env=False)
        if response.status_code != 200:
            raise ServerFailed(f"{self.name}: {path} answers {response.status_code}: {response.text[:200]}")
        body: dict[str, Any] = response.json()
        return body

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check_alive()
            with suppress(httpx.HTTPError):
                if httpx.get(self.url + self._ready_path, timeout=5.0, trust_env=False).status_code == 200:
                    return
            time.sleep(_POLL_SECONDS)
        raise ServerFailed(f"{self.name} is not ready after {START_SECONDS:g} s:\n{self.log_tail()}")


def wait_for_line(program: Started, line: str) -> None:
    """Until its output has it."""
    deadline = time.monotonic() + START_SECONDS
    while line not in program.log.read_text(errors="replace"):
        program.check_alive()
        if time.monotonic() > deadline:
            raise ServerFailed(f"{program.name} does not say {line!r} after {START_SECONDS:g} s:\n{program.log_tail()}")
        time.sleep(_POLL_SECONDS)


def chorus(
    model: Path | str,
    *options: str,
    name: str = "chorus",
    environment: Mapping[str, str] | None = None,
    checkout: Path | None = None,
) -> HttpServer:
    """The installed one, or that of another checkout."""
    port = free_port()
    command = [sys.executable, "-m", "chorus.cli", "serve", str(model), "--port", str(port), "--log-level", "warning"]
    environment = {**(environment or {}), **({"PYTHONPATH": str(checkout.resolve() / "src")} if checkout else {})}
    return HttpServer(name, [*command, *options], port, "/health/ready", environment)


def mlx_lm_server(model: Path, *options: str, threads: int, name: str = "mlx_lm.server") -> HttpServer:
    """Upstream's server with the BLAS that Chorus uses."""
    port = free_port()
    return HttpServer(name, _peer_command(model, port, threads, options), port, "/health", peer_module_environment())


def mlx_launch(model: Path, *options: str, ranks: int, threads: int, name: str) -> HttpServer:
    """Upstream's server over several ranks of this machine, on its ring."""
    port = free_port()
    launch = [_script("mlx.launch"), "-n", str(ranks), "--backend", "ring", "--starting-port", str(free_port()), "--"]
    return HttpServer(
        name, [*launch, *_peer_command(model, port, threads, options)], port, "/health", peer_module_environment()
    )


def child_environment(own: Mapping[str, str], mark: str, extra: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in own.items() if not key.startswith("CHORUS_") or key in _KEPT_SETTINGS}
    return {**kept, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **extra, _MARK: mark}


def runs_module(command_line: Sequence[str], module: str) -> bool:
    """True for `python -m module …`, false for a launcher that merely names it among its arguments."""
    if len(command_line) < 3 or "python" not in Path(command_line[0]).name:
        return False
    return list(command_line[1:3]) == ["-m", module]


def rank_processes(server: Started) -> dict[int, psutil.Process]:
    """The processes of a served model by rank; the engine is rank 0."""
    engines = server.processes_running("chorus.engine")
    if len(engines) != 1:
        raise ServerFailed(f"{server.name}: expected one engine process, found {len(engines)}:\n{server.log_tail()}")
    shards = server.processes_running("chorus.rank")
    return dict(sorted([(0, engines[0]), *((rank_of(_command_line(shard)), shard) for shard in shards)]))


def rank_of(command_line: Sequence[str]) -> int:
    return int(command_line[list(command_line).index("--rank") + 1])


def end_cleanly_when_told() -> None:
    """Turn SIGTERM into an exception, so that every block that started something also ends it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def peer_module_environment() -> dict[str, str]:
    """Servers run in an empty folder, where `-m benchmarks.…` would not be found."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


def _peer_command(model: Path, port: int, threads: int, options: Iterable[str]) -> list[str]:
    own = [sys.executable, "-m", "benchmarks.peer", "--threads", str(threads)]
    return [*own, "--model", str(model), "--host", "127.0.0.1", "--port", str(port), *options]


def _script(name: str) -> str:
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.is_file():
        raise ServerFailed(f"{path} is missing: install Chorus's own dependencies into this environment")
    return str(path)


def _mark_of(process: psutil.Process) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get(_MARK)
    except (psutil.Error, OSError):
        return None  # ended just now, or another user's: not ours either way


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _describe(process: psutil.Process) -> str:
    return f"{process.pid} {' '.join(_command_line(process)[:5])}".strip()
