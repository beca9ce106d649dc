"""Kills the process that started it as soon as that one's lifeline ends: `python killer.py LIFELINE OWN_PIPE`.

For systems whose kernel cannot do so (lifeline.py). It works on a process that is stopped, or inside a call that keeps
Python's lock. Both arguments are descriptors: at the end of the first the process is killed; the second ends when it is
gone by itself. The file is run by its path and needs nothing but the standard library, so that it starts at once.
"""

from __future__ import annotations

import os
import select
import signal
import sys


def main() -> None:
    target = os.getppid()
    lifeline, own_pipe = map(int, sys.argv[1:])
    while True:
        ended, _, _ = select.select([lifeline, own_pipe], [], [])
        # Neither is ever written to: what can be read is the end.
        if own_pipe in ended:
            return
        if lifeline in ended and not os.read(lifeline, 1):
            # While it lives, the target is our parent, so its number cannot mean another process.
            if os.getppid() == target:
                os.kill(target, signal.SIGKILL)
            return


if __name__ == "__main__":
    main()
