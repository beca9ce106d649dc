"""Copying a model between nodes, against `cp` to the same disk: `python -m tests.agents.transfer_benchmark`.

Both write a gigabyte to the same file system, several times by turns, in one run; the figure is the ratio of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from chorus.cluster.transfer import SharedFile
from chorus.cluster.trust_identity import Identity
from tests.agents.test_transfer import holder

FETCH = """
import sys
from pathlib import Path
from chorus.cluster.transfer import Fetcher, SharedFile
from chorus.cluster.trust_identity import Identity
port, identity, share, name, size, target = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
fetcher = Fetcher(("127.0.0.1", int(port)), Identity(Path(identity)), share)
fetcher.fetch(SharedFile(name, int(size)), Path(target))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chorus-copy-", dir=chosen.folder) as text:
        folder = Path(text)
        model = folder / "model"
        model.mkdir()
        file = model / "model.safetensors"
        block = os.urandom(1 << 20)
        with file.open("wb") as stream:
            for _ in range(chosen.megabytes):
                stream.write(block)
        size = file.stat().st_size
        with holder(folder, model) as (door, _, identity, share):
            copied, fetched = [], []
            for _ in range(chosen.rounds):
                copied.append(_time(folder, lambda target: subprocess.run(["cp", file, target], check=True)))
                fetched.append(_fetch(folder, door.port, identity, share, SharedFile(file.name, size)))
    cp, ours = statistics.median(copied), statistics.median(fetched)
    figures = {"megabytes": chosen.megabytes, "cp_mb_s": size / cp / 1e6, "ours_mb_s": size / ours / 1e6}
    print(json.dumps({**{k: round(v) for k, v in figures.items()}, "ratio": round(cp / ours, 2)}))


def _time(folder: Path, copy: Callable[[Path], object]) -> float:
    target = folder / "copy"
    os.sync()
    started = time.perf_counter()
    copy(target)
    _on_disk(target)
    seconds = time.perf_counter() - started
    target.unlink()
    return seconds


def _on_disk(file: Path) -> None:
    """A copy is done when the disk has it, not when memory has."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _fetch(folder: Path, port: int, identity: Identity, share: str, file: SharedFile) -> float:
    """In a process of its own, as on another node; its start is not counted."""
    target = folder / "copy"
    arguments = [str(port), str(identity.folder), share, file.name, str(file.size), str(target)]
    command = [sys.executable, "-c", FETCH, *arguments]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    os.sync()
    started = time.perf_counter()
    child.stdin.write(b"go\n")
    child.stdin.close()
    assert child.wait(300) == 0
    _on_disk(target)
    seconds = time.perf_counter() - started
    target.unlink()
    return seconds


if __name__ == "__main__":
    main()
