"""Runs on a host: starts a process that outlives the SSH session, says when it is ready, and ends it again.

`python -m chorus.deploy.ssh.launch start FOLDER NAME READY COMMAND…` prints what the process logs until READY (a
regular expression) is found; `stop FOLDER` ends what was started from that folder and prints what it ended.

What the process prints comes through a pipe, whose end goes with us: from then on it has its own log, and no other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from chorus.platform.files import write_whole
from chorus.platform.process.mark import mark

STOP_SECONDS = 20.0
END_SECONDS = 5.0


def main() -> int:
    match sys.argv[1:]:
        case ["start", folder, name, ready, *command]:
            return start(Path(folder), name, ready, command)
        case ["stop", folder]:
            print(json.dumps({"ended": stop(Path(folder))}))
            return 0
        case ["running", folder]:
            print(json.dumps({name: found.pid for name, found in running(Path(folder)).items()}))
            return 0
    print("use: start FOLDER NAME READY COMMAND…, stop FOLDER, or running FOLDER")
    return 2


def start(folder: Path, name: str, ready: str, command: list[str]) -> int:
    record = folder / f"{name}.pid"
    before, inputs = read_record(record), inputs_of(folder)
    if before and alive(before):
        if (before["command"], before["inputs"]) == (command, inputs):
            print(f"{name} runs already")
            return 0
        end([psutil.Process(before["pid"])])
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        start_new_session=True,
    )
    noted = {"pid": process.pid, "mark": mark(process.pid), "command": command, "inputs": inputs}
    try:
        write_whole(record, json.dumps(noted).encode())
    except OSError as error:
        # Without its number it could never be ended again.
        end([psutil.Process(process.pid)])
        print(f"{name} is not started: cannot write {record}: {error.strerror}")
        return 1
    return follow(process, re.compile(ready))


def inputs_of(folder: Path) -> str:
    """What a process was started from, besides its command: a change means that it must be started again."""
    config = folder / "config.json"
    return f"{os.environ.get('PYTHONPATH', '')} {hashlib.sha256(config.read_bytes()).hexdigest()}"


def follow(process: subprocess.Popen[bytes], ready: re.Pattern[str]) -> int:
    """Pass on what it says until it is ready or has ended; whoever called us has the deadline."""
    assert process.stdout is not None
    line = ""
    for data in process.stdout:
        line = data.decode(errors="replace").strip("\r\n")
        if line.strip():
            print(line, flush=True)
        if ready.search(line):
            return 0
    code = process.wait()
    if not line.strip():
        print(f"it ended with {code}", flush=True)
    return 1


def stop(folder: Path) -> dict[str, int]:
    """The coordinator first, so that it can tell its clients; then the agents."""
    found = running(folder)
    for name in sorted(found, key=lambda name: name != "coordinator"):
        end([found[name]])
    for record in folder.glob("*.pid"):
        record.unlink(missing_ok=True)
    return {name: process.pid for name, process in found.items()}


def running(folder: Path) -> dict[str, psutil.Process]:
    records = {file.stem: read_record(file) for file in folder.glob("*.pid")}
    return {name: psutil.Process(record["pid"]) for name, record in records.items() if record and alive(record)}


def end(processes: list[psutil.Process]) -> None:
    below = [child for process in processes for child in process.children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _, late = psutil.wait_procs([*processes, *below], timeout=STOP_SECONDS)
    for process in late:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(late, timeout=END_SECONDS)


def read_record(file: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):
        return None


def alive(record: dict[str, Any]) -> bool:
    """The process itself, and not another that got its number."""
    try:
        pid = int(record["pid"])
        return mark(pid) == record["mark"] and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, KeyError, ValueError, TypeError):
        return False


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
