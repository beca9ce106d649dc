"""A `chorus serve` for as long as something is measured, ended with all that it started."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from chorus.errors import ChorusError
from chorus.platform.process.lifeline import Lifeline

START_SECONDS = 3600.0
"""A large model may have to be fetched first; a server that cannot start says so itself."""
STOP_SECONDS = 60.0
_POLL_SECONDS = 0.1
_GRACE_SECONDS = 30.0
_READY = re.compile(r"ready .* at +(https?://\S+)/v1")
# Ends with the process that measures, however that one ends.
_PROGRAM = (
    f"from chorus.platform.process.lifeline import hold; hold({_GRACE_SECONDS}); from chorus.cli import main; main()"
)


class NotServed(ChorusError):
    """`chorus serve` did not start: says why."""


@contextlib.contextmanager
def serving(model: str, options: Sequence[str]) -> Iterator[str]:
    """Serve on a free port of this machine, as the settings of this folder and the options say; yields the URL."""
    lifeline = Lifeline()
    try:
        with _running(model, options, lifeline) as url:
            yield url
    finally:
        lifeline.cut()


@contextlib.contextmanager
def _running(model: str, options: Sequence[str], lifeline: Lifeline) -> Iterator[str]:
    ready, log = lifeline.path.with_name("ready"), lifeline.path.with_name("log")
    own = ["--host", "127.0.0.1", "--port", "0", "--ready-file", str(ready), "--log-level", "warning"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, "serve", model, *own, *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **lifeline.environment()},
            # Ctrl-C is for the one who measures: it ends the server in order.
            start_new_session=True,
        )
    try:
        yield _wait_until_ready(process, ready, log)
    finally:
        _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while not ready.exists():
        if process.poll() is not None:
            raise NotServed(f"chorus serve did not start: {_reason(log.read_text(errors='replace'))}")
        if time.monotonic() > deadline:
            raise NotServed(f"chorus serve is not ready after {START_SECONDS:g} s: start it yourself, and give its URL")
        time.sleep(_POLL_SECONDS)
    found = _READY.search(ready.read_text())
    if found is None:
        raise NotServed("chorus serve does not say where it serves: start it yourself, and give its URL")
    return found[1]


def _reason(log: str) -> str:
    """Its own error, or the last that it said."""
    said = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.partition("error: ")[2] for line in said if "error: " in line]
    return (errors or said or ["it says nothing"])[-1]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """In order if it does; its own processes end with it either way."""
    try:
        process.terminate()
        process.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
