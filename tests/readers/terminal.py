"""A terminal in a folder that has a project's files: lines are typed as they stand on the page."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.readers.tables import HERE
from tests.support import failure_logs
from tests.support.ports import listening_port

SECONDS = 180.0


class Terminal:
    """`with Terminal(tmp_path, "mlx_lm", hub_cache, "8080") as terminal: terminal.run("chorus …")`.

    The ports that are named stand in the project's files and in what is typed; others, that are free, take their place.
    """

    def __init__(self, folder: Path, project: str, hub_cache: Path, *ports: str) -> None:
        self.folder = Path(shutil.copytree(HERE / project, folder / project))
        self.ports = {port: str(listening_port()) for port in ports}
        for file in self.folder.iterdir():
            file.write_text(self._with_free_ports(file.read_text()))
        commands, home = folder / "bin", folder / "home"
        commands.mkdir()
        home.mkdir()
        command = commands / "chorus"
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m chorus.cli "$@"\n')
        command.chmod(0o755)
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("CHORUS_", "MLX_", "LOCALAI_"))}
        own = f"{commands}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**kept, "HOME": str(home), "PATH": own, "COLUMNS": "300"}
        self._environment |= {"HF_HOME": str(hub_cache), "HF_HUB_OFFLINE": "1"}
        # What was measured of this machine is measured once.
        self._environment["CHORUS_CACHE"] = os.environ.get("CHORUS_CACHE") or str(Path.home() / ".cache" / "chorus")
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []

    def run(self, line: str) -> str:
        """What it printed, once it has ended in order."""
        done = subprocess.run(
            ["sh", "-c", self._with_free_ports(line)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=self._environment,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{line}:\n{done.stdout}"
        return done.stdout

    def start(self, line: str) -> Path:
        """The file with what it prints; it runs until the end."""
        log = self.folder.parent / f"{len(self._running)}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {self._with_free_ports(line)}"],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._environment,
            )
        failure_logs.keep(line, log, process)
        self._running.append((process, log))
        return log

    def wait_for(self, log: Path, text: str) -> None:
        process = next(process for process, file in self._running if file == log)
        end = time.monotonic() + SECONDS
        while text not in (said := log.read_text(errors="replace")):
            assert process.poll() is None, f"it has ended:\n{said}"
            assert time.monotonic() < end, f"no {text!r} in:\n{said}"
            time.sleep(0.05)

    def _with_free_ports(self, text: str) -> str:
        return re.sub(r"\b\d+\b", lambda found: self.ports.get(found[0], found[0]), text)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _log in reversed(self._running):
            below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            psutil.wait_procs(below, timeout=30)
