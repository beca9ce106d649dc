"""Records which of our modules a process passes between two moments. On PYTHONPATH of one test's processes only.

Recording begins when the file `begin` appears in the folder that PASSED_MODULES names, and ends with the file `end`;
the process answers with `<its module>.begun` and `<its module>.passed`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = Path(os.environ["PASSED_MODULES"])
LOOK_SECONDS = 0.02
PROGRAMS = ("chorus.api", "chorus.engine", "chorus.rank")

seen: set[str] = set()
recording = False


def note(frame: FrameType, event: str, _: Any) -> None:
    if recording and event == "call" and frame.f_code.co_name != "<module>":
        seen.add(frame.f_code.co_filename)


def watch(program: str) -> None:
    global recording
    wait_for("begin")
    recording = True
    (FOLDER / f"{program}.begun").touch()
    wait_for("end")
    recording = False
    written = FOLDER / f"{program}.writing"
    written.write_text("\n".join(sorted(seen)))
    written.rename(FOLDER / f"{program}.passed")


def wait_for(name: str) -> None:
    while not (FOLDER / name).exists():
        time.sleep(LOOK_SECONDS)


for name in PROGRAMS:
    if name in sys.orig_argv:
        # Before anything else is imported, so that every thread that begins later is seen.
        threading.Thread(target=watch, args=(name,), daemon=True).start()
        threading.setprofile(note)
        sys.setprofile(note)
