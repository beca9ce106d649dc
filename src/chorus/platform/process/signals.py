"""Signals to processes that asyncio waits for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal


def send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal a process unless it has ended.

    asyncio's own way may first look whether it has, and takes its exit code away from whoever waits for it: a rank
    that was killed a moment ago would seem to have failed by itself.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
