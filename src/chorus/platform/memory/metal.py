"""What MLX is told on Metal, and what its errors mean. Where there is no Metal, nothing is called.

mlx.core is given, so that this module never imports it.
"""

from __future__ import annotations

from types import ModuleType

from chorus.errors import ChorusError
from chorus.platform.memory import mac

_LOST = ("[METAL]", "Command buffer")


class GpuLost(ChorusError):
    """Metal failed: macOS may ignore whatever this process asks of the GPU from now on, so that it must end."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the GPU of this Mac failed, and only a new process gets it back: {error}")


def gpu_lost(error: BaseException) -> bool:
    return any(sign in str(error) for sign in _LOST)


def raise_if_gpu_lost(error: BaseException) -> None:
    if gpu_lost(error):
        raise GpuLost(error) from error


def hold(mx: ModuleType, weights: int, budget: mac.Budget) -> None:
    """Keep a loaded model in memory: unwired, a large one is paged out between two tokens."""
    # MLX refuses more than Metal itself reported when the process began, whatever the owner has raised it to since.
    most = min(budget.working_set, int(mx.device_info()["max_recommended_working_set_size"]))
    mx.set_wired_limit(mac.wired_limit(most, weights, max(0, budget.room - weights)))
    mx.set_cache_limit(mac.freed_buffers_limit(most))


def held_memory(mx: ModuleType) -> int:
    """What MLX holds through Metal, freed buffers too: the system counts that to no process's resident memory."""
    if not mx.metal.is_available():
        return 0
    return int(mx.get_active_memory()) + int(mx.get_cache_memory())
