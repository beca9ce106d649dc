"""Is Chorus well on this machine? `python -m chorus.cluster.health` ends with 0 or 1: for containers.

An agent is well while it runs and lets its cluster in; a server while its API says so.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import ssl
import sys
import urllib.request
from pathlib import Path

from chorus.cluster.servers import own_servers
from chorus.security.node_folder import state_dir

TIMEOUT_SECONDS = 4.0


def agent_problem(state: Path) -> str | None:
    """Why the agent is not well; None when it is."""
    try:
        lock = os.open(state / "agent.lock", os.O_RDWR)
    except FileNotFoundError:
        return "no agent was ever started"
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return "the agent is not running"
    except BlockingIOError:
        told = os.pread(lock, 4096, 0).decode(errors="replace")
    finally:
        os.close(lock)
    try:
        host, port = json.loads(told)["door"]
        socket.create_connection((host if host != "0.0.0.0" else "127.0.0.1", port), TIMEOUT_SECONDS).close()
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the agent takes no connections: {error}"
    return None


def server_problem() -> str | None:
    serving = next(iter(own_servers()), None)
    if serving is None:
        return "nothing is served"
    try:
        # Whether anybody answers is all that is asked, so whose certificate it is does not matter.
        anybody = ssl._create_unverified_context()
        with urllib.request.urlopen(f"{serving.url}/health/live", timeout=TIMEOUT_SECONDS, context=anybody) as answer:
            return None if answer.status == 200 else f"{serving.url} answers {answer.status}"
    except OSError as error:
        return f"{serving.url} does not answer: {error}"


def main() -> int:
    problems = [agent_problem(state_dir()), server_problem()]
    if None in problems:
        return 0
    print("; ".join(str(problem) for problem in problems))
    return 1


if __name__ == "__main__":
    sys.exit(main())
