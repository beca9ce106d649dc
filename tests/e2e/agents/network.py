"""A network that has nobody in it but this machine."""

from __future__ import annotations

import shutil
import subprocess
from types import TracebackType

import pytest

_HOLD = "ip link set lo up && echo up && exec cat"


class OwnNetwork:
    """A namespace with a loopback and nothing else; it lasts as long as the process that holds it."""

    def __init__(self) -> None:
        if not shutil.which("unshare") or not shutil.which("nsenter"):
            pytest.skip("needs a network namespace: unshare and nsenter are not installed")
        self._holder = subprocess.Popen(
            ["unshare", "--map-root-user", "--net", "sh", "-c", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"up\n":
            _, problem = self._holder.communicate(timeout=60)
            pytest.skip(f"needs a network namespace: {problem.decode().strip()}")

    @property
    def enter(self) -> list[str]:
        """What stands before a command that is to run in it."""
        return ["nsenter", "--target", str(self._holder.pid), "--user", "--net", "--preserve-credentials"]

    def __enter__(self) -> OwnNetwork:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._holder.communicate(timeout=60)
