"""What a rank's caches really take, seen at every step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx

from chorus.messages.rank import Step
from chorus.rank.runner import Runner


@dataclass
class Most:
    """The most of each, in bytes."""

    held: int = 0
    """In the arrays of live and stored caches."""
    active: int = 0
    """By MLX's own count between steps, besides what it held before the first one: the weights."""
    peak: int = 0
    """The same, inside steps, with all that is computed and thrown away."""


class Meter:
    """Looks at a rank before and after every step, and writes the most that it saw to a file."""

    def __init__(self, file: Path) -> None:
        self.most = Most()
        self._file = file
        self._before: int | None = None

    def install(self) -> Any:
        """On every runner of this process, until the patch is stopped."""
        run = Runner.run

        def metered(runner: Runner, step: Step, *rest: Any) -> Sequence[mx.array]:
            self._look(runner)
            outputs = run(runner, step, *rest)
            self._look(runner)
            return outputs

        patch = mock.patch.object(Runner, "run", metered)
        patch.start()
        return patch

    def _look(self, runner: Runner) -> None:
        # What is being computed is no part of what is held.
        mx.synchronize()
        if self._before is None:
            self._before = mx.get_active_memory()
            mx.reset_peak_memory()
        seen = Most(
            max(self.most.held, runner.cache_bytes + runner.stored_bytes),
            max(self.most.active, mx.get_active_memory() - self._before),
            max(self.most.peak, mx.get_peak_memory() - self._before),
        )
        if seen != self.most:
            self.most = seen
            # All at once: a follower is killed when its leader is done, whatever it is doing.
            aside = self._file.with_suffix(".new")
            aside.write_text(json.dumps(asdict(seen)))
            aside.replace(self._file)

    @staticmethod
    def read(file: Path) -> Most:
        return Most(**json.loads(file.read_text()))
