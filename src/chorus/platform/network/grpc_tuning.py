"""What gRPC is told by its environment, which it reads when it is imported."""

from __future__ import annotations

import os

from chorus.platform import system


def spare_threads() -> None:
    """Its newer way to read sockets passes every message through a pool of threads that look for work, a third of what
    a token costs a front end. The older one reads in the one thread that waits anyway. Tried on Linux only.
    """
    if system.is_linux():
        os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")
