"""A rank whose main thread hangs at the end of a step, while its other threads live on: `python -m` as chorus.rank."""

from __future__ import annotations

import runpy
import threading

from chorus.platform.process import beats

HANGS_AT = 3


def finished(step: int) -> None:
    if step == HANGS_AT:
        threading.Event().wait()


if __name__ == "__main__":
    beats.finished = finished
    runpy.run_module("chorus.rank", run_name="__main__")
