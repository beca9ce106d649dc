"""A machine that takes part in serving a model must not fall asleep: it would take the whole cluster with it."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess

from chorus.platform import system

log = logging.getLogger("chorus.awake")

_END_SECONDS = 5.0


class Awake:
    """Between `hold` and `release`, and never longer than this process lives, the machine does not sleep by itself.

    Only a Mac needs that: its `caffeinate` is tied to our process, so that it goes with us however we end.
    """

    def __init__(self) -> None:
        self._caffeinate: subprocess.Popen[bytes] | None = None

    def hold(self) -> None:
        program = shutil.which("caffeinate") if system.is_mac() else None
        if program is None or (self._caffeinate and self._caffeinate.poll() is None):
            return
        try:
            self._caffeinate = subprocess.Popen(
                [program, "-ims", "-w", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            log.warning("this Mac may fall asleep while it serves: %s: %s", program, error.strerror)

    def release(self) -> None:
        caffeinate, self._caffeinate = self._caffeinate, None
        if caffeinate:
            caffeinate.kill()  # it holds nothing but its wish
            caffeinate.wait(_END_SECONDS)
