"""Runs on a host: starts a process that outlives the SSH session, says when it is ready, and ends it again.

`python -m chorus.cluster.ssh_launch start FOLDER NAME READY COMMAND…` prints what the process logs until READY (a
regular expression) is found; `stop FOLDER` ends what was started from that folder and prints what it ended.
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
import time
from pathlib import Path
from typing import Any

import psutil

STOP_SECONDS = 20.0
_POLL_SECONDS = 0.05


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
    record, output = folder / f"{name}.pid", folder / "logs" / f"{name}_start.log"
    before, inputs = read_record(record), inputs_of(folder)
    if before and alive(before):
        if (before["command"], before["inputs"]) == (command, inputs):
            print(f"{name} runs already")
            return 0
        end([psutil.Process(before["pid"])])
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    created = psutil.Process(process.pid).create_time()
    record.write_text(json.dumps({"pid": process.pid, "created": created, "command": command, "inputs": inputs}))
    return follow(process, output, re.compile(ready))


def inputs_of(folder: Path) -> str:
    """What a process was started from, besides its command: a change means that it must be started again."""
    config = folder / "config.json"
    return f"{os.environ.get('PYTHONPATH', '')} {hashlib.sha256(config.read_bytes()).hexdigest()}"


def follow(process: subprocess.Popen[bytes], output: Path, ready: re.Pattern[str]) -> int:
    """Pass on what it says until it is ready or has ended; whoever called us has the deadline."""
    position = 0
    while True:
        ended = process.poll()
        with output.open("rb") as stream:
            stream.seek(position)
            whole = stream.read().rpartition(b"\n")
        position += len(whole[0] + whole[1])
        for line in whole[0].decode(errors="replace").splitlines():
            if line.strip():
                print(line, flush=True)
            if ready.search(line):
                return 0
        if ended is not None:
            print(whole[2].decode(errors="replace") or f"it ended with {ended}", flush=True)
            return 1
        time.sleep(_POLL_SECONDS)


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
    psutil.wait_procs(late, timeout=5)


def read_record(file: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):
        return None


def alive(record: dict[str, Any]) -> bool:
    """The process itself, and not another that got its number."""
    try:
        found = psutil.Process(int(record["pid"]))
        return abs(found.create_time() - float(record["created"])) < 1 and found.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, KeyError, ValueError):
        return False


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
