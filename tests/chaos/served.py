"""A server that faults happen to: how they are brought about, when it noticed, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from chorus.platform import faults
from chorus.platform.faults import FRONT_END, Fault
from chorus.platform.memory.ledger import own_file
from chorus.telemetry.journal import folder_in, newer_file
from tests.chaos.asking import Asker
from tests.chaos.plan import CLOCK, COORDINATOR, HANDOVER, OUTSIDE, PAUSE, SMOLLM2, Group, PlannedFault
from tests.support.server import ChorusServer

TAP = Path(__file__).parent / "tap"
FAULT_SECONDS = 60.0
"""A fault that was to happen within some steps has not by then: that is an error of the plan or the server."""
LOOK_SECONDS = 0.02
PAUSED_SECONDS = 0.6
JUMPED_SECONDS = 4.0
END_SECONDS = 90.0


class FaultMissing(AssertionError):
    """A fault did not happen."""


def eventually(check: Callable[[], Any], seconds: float) -> Any:
    """What the check gives once that is true; None when it never was."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        if time.monotonic() > deadline:
            return None
        time.sleep(LOOK_SECONDS)
    return found


class Folder:
    """Where all that a server writes lies, so that what it leaves is seen."""

    def __init__(self) -> None:
        # Sockets lie below it, and their names may not be long.
        self.path = Path(tempfile.mkdtemp(prefix="chaos-"))
        for name in ("faults", "notes", "tmp", "state", "cwd"):
            (self.path / name).mkdir()
        self.faults, self.notes = self.path / "faults", self.path / "notes"

    @property
    def environment(self) -> dict[str, str]:
        inherited = os.environ.get("PYTHONPATH")
        return {
            faults.VARIABLE: str(self.faults),
            "CHAOS_NOTES": str(self.notes),
            "PYTHONPATH": os.pathsep.join([str(TAP), *([inherited] if inherited else [])]),
            "TMPDIR": str(self.path / "tmp"),
            "CHORUS_STATE": str(self.path / "state"),
        }

    def processes(self) -> list[psutil.Process]:
        """All that were started for this server, whoever their parents are now."""
        return [process for process in psutil.process_iter() if _serves(process, str(self.faults))]

    def left(self) -> Iterator[str]:
        """What is there when nothing runs any more and should not be."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):  # it has just ended
                yield f"process {process.pid} {' '.join(process.cmdline()[:6])}"
        events = newer_file(folder_in(self.path / "state"))
        for name in ("tmp", "state"):  # what a cluster has to keep lies elsewhere
            for path in (self.path / name).rglob("*"):
                if path.stem == own_file().stem and not _bookings(path):
                    continue  # the ledger of this machine's memory, empty
                if path == events:
                    continue  # what happened to this server
                # MLX keeps the functions that it has compiled.
                if not path.is_dir() and not path.is_relative_to(self.path / "tmp" / "mlx"):
                    yield f"file {path.relative_to(self.path)}"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Served:
    """`with Served(group, model) as served:` starts it; leaving the block ends it and all that is left of it."""

    def __init__(self, group: Group, model: Path | str) -> None:
        self.group = group
        self.folder = Folder()
        self._model = model
        self._injected = 0
        self._read_from = 0
        self.server: Any = self._started()

    def asker(self, seed: str, first: int = 1) -> Asker:
        return Asker(self.server.url, self.group.model, seed, first)

    def restart(self) -> None:
        """After the supervisor was killed: another one, where the first one was."""
        self.server = self._started()
        self._wait_until_ready()

    def stop(self) -> None:
        """As a user would."""
        self.server.stop()

    def step(self) -> int:
        """The last one that was sent."""
        return int(httpx.get(f"{self.server.url}/cluster/status", timeout=60, trust_env=False).json()["step"])

    def process(self, rank: int) -> psutil.Process:
        found = eventually(lambda: self._find(rank), FAULT_SECONDS)
        if found is None:
            raise FaultMissing(f"there is no process of rank {rank}")
        return found  # type: ignore[no-any-return]

    def suffer(self, fault: PlannedFault) -> float:
        """Brings the fault about; returns once it has happened, with the time at which it did."""
        self._read_from = self.server.log_file.stat().st_size
        moment = self._suffer(fault)
        if fault.then:
            self._suffer(fault.then)
        return moment

    def _suffer(self, fault: PlannedFault) -> float:
        if fault.kind == COORDINATOR:
            time.sleep(fault.after)
            return _signalled(psutil.Process(self.server.process.pid), signal.SIGKILL)
        if fault.place == OUTSIDE:
            time.sleep(fault.after)
            return self._jumped(fault) if fault.kind == CLOCK else self._from_outside(fault)
        self._injected += 1
        name = f"fault-{self._injected:04}"
        first = 0 if fault.rank == FRONT_END else self.step() + int(fault.after)
        Fault(fault.kind, fault.place, fault.rank, first).write(self.folder.faults, name)
        if not eventually((self.folder.faults / f"{name}.done").exists, FAULT_SECONDS):
            (self.folder.faults / f"{name}.json").unlink()
            raise FaultMissing(f"{fault.name} did not happen within {FAULT_SECONDS:g} s")
        # Whoever suffers it makes the file, and may be held up before it has written its line.
        told = eventually((self.folder.faults / f"{name}.done").read_text, FAULT_SECONDS)
        (self.folder.faults / f"{name}.json").unlink()
        if told is None:
            raise FaultMissing(f"{fault.name} was to happen, and did not say when within {FAULT_SECONDS:g} s")
        return float(told.split()[1])

    def noticed(self, moment: float) -> float | None:
        """When one of its processes first complained after the fault, where one has."""
        return next((when for when, level in self._log(moment) if level in ("warning", "error")), None)

    def _log(self, since: float) -> Iterator[tuple[float, str]]:
        """Time and level of the records since then, among those that were not there before the last fault."""
        with self.server.log_file.open("rb") as log:
            log.seek(self._read_from)
            lines = log.read().splitlines()
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                when = datetime.fromisoformat(record["time"]).timestamp()
                # They have whole milliseconds.
                if when >= since - 0.001:
                    yield when, record["level"]

    def ports(self) -> set[int]:
        """Where its processes listen now, the front end's own apart, which a later start would choose anew."""
        found = set()
        for process in self.folder.processes():
            with contextlib.suppress(psutil.Error):
                listening = (c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
                found |= {connection.laddr.port for connection in listening}
        return found

    def _from_outside(self, fault: PlannedFault) -> float:
        process = self.process(fault.rank)
        if fault.kind == HANDOVER:
            moment = _signalled(psutil.Process(self.server.process.pid), signal.SIGHUP)
            if not eventually(lambda: not process.is_running(), FAULT_SECONDS):
                raise FaultMissing("the old front end did not leave")
            return moment
        number = signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP
        try:
            moment = _signalled(process, number)
        except psutil.NoSuchProcess:
            # Found while the server was ending it for the fault before: the one that takes its place is meant.
            process = self.process(fault.rank)
            moment = _signalled(process, number)
        if not eventually(lambda: _stands(process), FAULT_SECONDS):
            raise FaultMissing(f"process {process.pid} runs on")
        if fault.kind == PAUSE:
            time.sleep(PAUSED_SECONDS)
            # A watcher counts from the last tick, and we may be held up here: it may have been replaced meanwhile, for
            # which nobody may lose anything either.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        return moment

    def _jumped(self, fault: PlannedFault) -> float:
        moment, file = time.time(), self.folder.notes / "clock"
        # All at once: whoever looks at the time meanwhile must not find half a number.
        aside = file.with_suffix(".new")
        aside.write_text(str(3600 if fault.after < 0.5 else -3600))
        aside.rename(file)
        time.sleep(JUMPED_SECONDS)
        file.unlink()
        return moment

    def _find(self, rank: int) -> psutil.Process | None:
        words = {FRONT_END: ["chorus.api"], 0: ["chorus.engine"]}.get(rank, ["chorus.rank", "--rank", str(rank)])
        for process in self.folder.processes():
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                if line[1:2] == ["-m"] and all(word in line for word in words) and _follows(line, words):
                    return process
        return None

    def _wait_until_ready(self) -> None:
        self.server.wait_until_ready()

    def _started(self) -> Any:
        group, numbers = self.group, ["--dtype", "float32"] if self.group.model == SMOLLM2 else []
        arguments = ["--ranks", str(group.ranks), "--parallel", group.parallel, "--transport", group.transport]
        return ChorusServer(
            self._model, [*arguments, *numbers, "--log-json"], self.folder.path / "cwd", self.folder.environment
        )

    def __enter__(self) -> Self:
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.folder.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.folder.remove()


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _follows(line: list[str], words: list[str]) -> bool:
    """The rank's number stands behind its option."""
    return len(words) < 3 or line[line.index(words[1]) + 1] == words[2]


def _signalled(process: psutil.Process, number: signal.Signals) -> float:
    moment = time.time()
    process.send_signal(number)
    return moment


def _stands(process: psutil.Process) -> bool:
    """Whether it does nothing any more, for now or for good."""
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def _serves(process: psutil.Process, folder: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(faults.VARIABLE) == folder
    except (psutil.Error, OSError):
        return False


def _bookings(ledger: Path) -> list[Any]:
    """Of a ledger; its lock has none."""
    return list(json.loads(ledger.read_text())["bookings"]) if ledger.suffix == ".json" else []
