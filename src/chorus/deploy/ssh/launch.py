"""Runs on a host: starts a process that outlives the SSH session, says when it is ready, and ends it again.

`python -m chorus.deploy.ssh.launch start FOLDER NAME COMMAND…` prints what the process logs until it has written
FOLDER/NAME.ready; `stop FOLDER` ends what was started from that folder and prints what it ended.

What the process prints comes through a pipe, whose end goes with us: from then on it has its own log, and no other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from chorus.platform.process.mark import lives, mark
from chorus.platform.storage.files import write_whole

STOP_SECONDS = 20.0
END_SECONDS = 5.0
LOOK_SECONDS = 0.1


def main() -> int:
    match sys.argv[1:]:
        case ["start", folder, name, *command] if command:
            return start(Path(folder), name, command)
        case ["stop", folder]:
            print(json.dumps({"ended": stop(Path(folder))}))
            return 0
        case ["running", folder]:
            print(json.dumps({name: found.pid for name, found in running(Path(folder)).items()}))
            return 0
    print("use: start FOLDER NAME COMMAND…, stop FOLDER, or running FOLDER")
    return 2


def start(folder: Path, name: str, command: list[str]) -> int:
    record, ready = folder / f"{name}.pid", folder / f"{name}.ready"
    before, inputs = read_record(record), inputs_of(folder)
    if before and alive(before):
        if (before["command"], before["inputs"]) == (command, inputs):
            print(f"{name} runs already", flush=True)
            return wait_for(before, ready)
        end([psutil.Process(before["pid"])])
    ready.unlink(missing_ok=True)
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
    return follow(process, ready)


def inputs_of(folder: Path) -> str:
    """What a process was started from, besides its command: a change means that it must be started again."""
    config = folder / "config.json"
    return f"{os.environ.get('PYTHONPATH', '')} {hashlib.sha256(config.read_bytes()).hexdigest()}"


def follow(process: subprocess.Popen[bytes], ready: Path) -> int:
    """Pass on what the process says until it is ready or has ended. Our caller has the deadline: we end with it."""
    output, caller = process.stdout, os.getppid()
    assert output is not None
    os.set_blocking(output.fileno(), False)
    rest, last = b"", ""
    while True:
        # Looked at before reading: what it said until then is passed on.
        is_ready, ended = ready.exists(), process.poll() is not None
        select.select([output], [], [], 0 if is_ready or ended else LOOK_SECONDS)
        data = output.read()
        *lines, rest = (rest + (data or b"")).split(b"\n")
        for line in (*lines, rest) if is_ready or ended else lines:
            if text := line.decode(errors="replace").strip("\r").rstrip():
                last = text
                print(text, flush=True)
        if is_ready:
            return 0
        if ended:
            if not last:
                print(f"the process ended with exit code {process.returncode}", flush=True)
            return 1
        if os.getppid() != caller:
            return 1
        if data == b"":  # it lives on without an output, which would be ready to read again and again
            time.sleep(LOOK_SECONDS)


def wait_for(record: dict[str, Any], ready: Path) -> int:
    """Wait for a process that was started before and whose output nobody sees any more. We end with our caller."""
    caller = os.getppid()
    while not ready.exists() and os.getppid() == caller:
        if not alive(record):
            print("the process ended before it was ready", flush=True)
            return 1
        time.sleep(LOOK_SECONDS)
    return 0 if ready.exists() else 1


def stop(folder: Path) -> dict[str, int]:
    """End the coordinator first, so that it can tell its clients, then the agents; answers what was ended."""
    found = running(folder)
    for name in sorted(found, key=lambda name: name != "coordinator"):
        end([found[name]])
    for file in (*folder.glob("*.pid"), *folder.glob("*.ready")):
        file.unlink(missing_ok=True)
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
    """Whether the recorded process lives: itself, and not another that got its number."""
    try:
        return lives(int(record["pid"]), record["mark"])
    except (psutil.Error, KeyError, ValueError, TypeError):
        return False


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
