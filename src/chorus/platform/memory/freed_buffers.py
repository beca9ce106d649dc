"""What MLX and the C library keep of freed memory for the next step, and when it goes back to the system."""

from __future__ import annotations

import ctypes
from types import ModuleType

from chorus.platform.accelerator import device


class FreedBuffers:
    """Given back when there has been no step for a while. A CUDA device's are bounded as a model is loaded."""

    def __init__(self, mx: ModuleType) -> None:
        self._mx = mx if mx.metal.is_available() or device.backend() == "cpu" else None
        self._used = False

    def used(self) -> None:
        self._used = self._mx is not None

    @property
    def any(self) -> bool:
        return self._used

    def give_back(self) -> None:
        if self._mx and self._used:
            self._mx.clear_cache()
            give_back_freed()
            self._used = False


def give_back_freed() -> None:
    """What this process has freed goes back to the system, where its C library would keep it."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
