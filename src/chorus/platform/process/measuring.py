"""What processes that only measure have in common: they try something again and again, and print what they found."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

from chorus.errors import ChorusError
from chorus.platform.accelerator.mlx_import import explain

_FEWEST_RUNS = 3


def seconds_of(action: Callable[[], object], budget: float) -> list[float]:
    """How long each run took, for about so many seconds and a few times at least; the first run does not count."""
    action()
    runs: list[float] = []
    end = time.perf_counter() + budget
    while len(runs) < _FEWEST_RUNS or time.perf_counter() < end:
        begin = time.perf_counter()
        action()
        runs.append(time.perf_counter() - begin)
    return runs


def tell(about: str | None, measure: Callable[[int | None], object]) -> None:
    """The whole of such a process: measure with `--threads`, and print the answer as JSON, or why there is none."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--threads", type=int, default=None)
    threads = parser.parse_args().threads
    try:
        print(json.dumps(measure(threads)))
    except ImportError as error:
        sys.exit(explain(str(error)))
    except ChorusError as error:
        sys.exit(str(error))
